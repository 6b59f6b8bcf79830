"""Networks of the user: a function from the env's spec to a torch module, trained by PPO.

The module maps named observation arrays to logits and a value; everything else (sampling, masks,
value normalisation, checkpoints, export) is that of the built-in network. A run folder holds the
weights and the name of the function, but no code: the function is given again to load them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

import torch
from torch import Tensor, nn

from hundredfold.algorithms.actor_critic import ActorCritic, InputLayer, NetworkSettings, split_images
from hundredfold.algorithms.memory import Sequences
from hundredfold.core.batch import EnvSpec
from hundredfold.core.errors import SettingsError

__all__ = ["CustomActorCritic", "NetworkFunction", "make_actor_critic", "using_network"]

NetworkFunction = Callable[[EnvSpec], nn.Module]
"""From the env's spec to a module: `module(observation)` returns logits, (rows, spec.num_logits), and
values, (rows,) or (rows, 1). `observation` holds tensors by name, (rows, *shape), as the env returns
them; `spec.policy_observation` describes each. A method `update_stats(observation)`, if there is one,
gets every rollout after its update, for running statistics of inputs."""

_FUNCTION: ContextVar[NetworkFunction | None] = ContextVar("network function", default=None)


@contextmanager
def using_network(function: NetworkFunction | None) -> Iterator[None]:
    """Build runs whose settings name a function with this one; None keeps the present one."""
    if function is None:
        yield
        return
    token = _FUNCTION.set(function)
    try:
        yield
    finally:
        _FUNCTION.reset(token)


class CustomActorCritic(ActorCritic):
    """A module of the user with the interface of the built-in network.

    Args:
        spec: Observation and action spec of the env.
        settings: Network settings; only the initial action std matters.
        module: The user's module.
    """

    def __init__(self, spec: EnvSpec, settings: NetworkSettings, module: nn.Module) -> None:
        nn.Module.__init__(self)
        # Policy and value may share layers: they are trained together.
        self.settings = replace(settings, architecture="mlp", shared=True)
        self.action_nvec, self.logit_bias = spec.action_nvec, spec.logit_bias
        self.observation_names = tuple(spec.policy_observation)
        self.images = tuple(split_images(spec.policy_observation)[0])
        self.inputs = InputLayer({}, normalise=False)
        self.policy_encoder = self.value_encoder = self.privileged = self.per_action = None
        self.policy_memory = self.value_memory = None
        self.memory_size = 0
        self.module = module
        # The module's values, which a change of the value normalisation can rescale.
        self.value_head = nn.Linear(1, 1)
        nn.init.ones_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        self._make_outputs(spec)

    @torch.no_grad()
    def preprocess(self, observation: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: observation[name] for name in self.observation_names}

    def logits(self, observation: Mapping[str, Tensor], sequences: Sequences | None = None) -> Tensor:
        return self.logits_and_value(observation)[0]

    def normalised_value(self, observation: Mapping[str, Tensor], sequences: Sequences | None = None) -> Tensor:
        return self.logits_and_value(observation)[1]

    def logits_and_value(
        self, observation: Mapping[str, Tensor], sequences: Sequences | None = None
    ) -> tuple[Tensor, Tensor]:
        logits, value = self.module(self.preprocess(observation))
        scaled: Tensor = self.value_head(value.reshape(-1, 1)).squeeze(-1)
        return self._add_logit_bias(logits, observation), scaled

    def update_stats(self, observation: Mapping[str, Tensor]) -> None:
        update_stats = getattr(self.module, "update_stats", None)
        if callable(update_stats):
            with torch.no_grad():
                update_stats(self.preprocess(observation))


def make_actor_critic(spec: EnvSpec, settings: NetworkSettings) -> ActorCritic:
    """The built-in network, or that of the user's function where the settings name one."""
    if not settings.network_function:
        return ActorCritic(spec, settings)
    function = _FUNCTION.get()
    if function is None:
        raise SettingsError(
            f"the network of this run is made by the Python function {settings.network_function}, which its folder "
            "does not hold; pass the function again from Python, as network=..., to hundredfold.train, load, evaluate "
            "or export."
        )
    if settings.memory != "none" or settings.critic != "observation":
        raise SettingsError("network= cannot be combined with --memory or --critic; the function makes both networks.")
    with torch.device("cpu"):
        module = function(spec)
        _check_outputs(module, spec, settings.network_function)
    return CustomActorCritic(spec, settings, module)


def _check_outputs(module: object, spec: EnvSpec, name: str) -> None:
    """Raise a SettingsError unless the module returns logits and values of the right shapes."""
    if not isinstance(module, nn.Module):
        raise SettingsError(f"{name} returned {type(module).__name__}; expected a torch.nn.Module.")
    rows, num_logits = 2, spec.num_logits
    observation = {key: torch.from_numpy(array.empty(rows)) for key, array in spec.policy_observation.items()}
    module.eval()
    with torch.no_grad():
        outputs = module(observation)
    module.train()
    parts = outputs if isinstance(outputs, tuple | list) else [outputs]
    shapes = [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
    if shapes not in ([(rows, num_logits), (rows,)], [(rows, num_logits), (rows, 1)]):
        raise SettingsError(
            f"the network of {name} returned {' and '.join(map(str, shapes))} for {rows} rows; expected logits of "
            f"shape ({rows}, {num_logits}) and values of shape ({rows},)."
        )
