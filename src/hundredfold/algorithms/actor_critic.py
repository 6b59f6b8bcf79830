"""Actor-critic network: named observation arrays in, logits and a value out.

One network serves every env: quantities are flattened, categories one-hot encoded, images pass an
`ImageEncoder`, and the concatenation feeds a multilayer perceptron. For continuous actions the
logits are means of a diagonal Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Final, Literal

import torch
from annotated_types import Gt, Interval, Lt
from torch import Tensor, nn
from torch.nn import functional as F

from hundredfold.algorithms.distributions import ActionBounds, ActionDistribution, DiagonalGaussian, MaskedCategorical
from hundredfold.algorithms.image_encoder import ImageEncoder, image_layout
from hundredfold.algorithms.memory import GatedRecurrentUnit, Sequences
from hundredfold.core.batch import Arrays, ArraySpec, EnvSpec
from hundredfold.core.bounds import NonNegativeInt, check_bounds
from hundredfold.core.errors import SettingsError

if TYPE_CHECKING:
    from hundredfold.algorithms.per_action import PerActionActor

# Normalised inputs are clipped to this many standard deviations.
MAX_NORMALISED_INPUT: Final = 10.0

# Keys of observations that have been flattened and normalised already.
PREPROCESSED: Final = "preprocessed inputs"
PREPROCESSED_PRIVILEGED: Final = "preprocessed privileged inputs"

Activation = Literal["relu", "silu", "tanh"]
Architecture = Literal["mlp", "per_action", "joint"]
CriticInputs = Literal["observation", "privileged"]
Memory = Literal["none", "gru"]

ACTIVATIONS: Final[dict[Activation, type[nn.Module]]] = {"relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Architecture of the policy and value networks."""

    architecture: Architecture = "mlp"
    """Policy network: `mlp` reads the whole observation; `per_action` scores each action by its own
    features with shared weights (dvrp with --observation offers); `joint` scores them without
    sharing, for comparison. The last two for --algo ppo, on returns or --advantages futures."""
    hidden_sizes: tuple[Annotated[int, Interval(ge=1, le=1_000_000)], ...] = (64, 64)
    """Units of each hidden layer."""
    activation: Activation = "relu"
    """Activation function between layers; tanh takes about twice the time of the others."""
    shared: bool = False
    """Share the hidden layers between policy and value."""
    critic: CriticInputs = "observation"
    """Inputs of the value function in training: the policy's `observation`, or also the `privileged`
    arrays of the env (cage2: true state; dvrp: tolerances and later requests; Gymnasium:
    --privileged-keys). The trained policy does not need them."""
    memory: Memory = "none"
    """`gru` gives policy and value a memory of the episode, a gated recurrent unit, for envs whose
    observations do not tell the state."""
    memory_size: Annotated[int, Interval(ge=1, le=65_536)] = 128
    """Units of the memory."""
    memory_steps: NonNegativeInt = 0
    """Steps of back-propagation through time; must divide the steps of an update. 0 chooses a
    divisor from 16 to 64, or else all of them."""
    normalise_observations: bool = False
    """Normalise inputs by their running mean and standard deviation."""
    initial_action_std: Annotated[float, Gt(0), Lt(math.inf)] = 0.5
    """Initial standard deviation of continuous actions, in half-widths of their range."""
    network_function: str = ""
    """Name of the Python function that makes the network instead; set by
    hundredfold.train(network=...), which needs the function itself."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.hidden_sizes:
            raise SettingsError("hidden_sizes must name at least one layer, got none.")
        if self.architecture != "mlp" and self.shared:
            raise SettingsError(f"a {self.architecture} policy shares no layers with the value; turn off shared.")
        if self.architecture != "mlp" and self.memory != "none":
            raise SettingsError(f"a {self.architecture} policy has no memory; use --architecture mlp.")
        if self.critic == "privileged" and self.shared:
            raise SettingsError("a privileged critic shares no layers with the policy; turn off shared.")

    @property
    def ppo_only(self) -> list[str]:
        """Flags of these settings that only the PPO of this package has."""
        named = {
            f"--architecture {self.architecture}": self.architecture != "mlp",
            "--critic privileged": self.critic == "privileged",
            "--memory gru": self.memory == "gru",
            "network=": bool(self.network_function),
        }
        return [name for name, is_set in named.items() if is_set]


class InputLayer(nn.Module):
    """Flattens named observation arrays into one row of inputs, optionally normalised.

    Args:
        specs: The arrays, in the order of the inputs; categories are one-hot encoded.
        normalise: Keep running statistics and normalise by them.
        key: Name under which preprocessed inputs are found in an observation.
    """

    mean: Tensor
    std: Tensor
    count: Tensor

    def __init__(self, specs: Mapping[str, ArraySpec], normalise: bool, key: str = PREPROCESSED) -> None:
        super().__init__()
        self.specs = dict(specs)
        self.key = key
        self.width = sum(sum(spec.categories) if spec.categories else spec.size for spec in self.specs.values())
        self.normalise = normalise
        if normalise:
            self.register_buffer("mean", torch.zeros(self.width))
            self.register_buffer("std", torch.ones(self.width))
            self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, width) inputs of the first layer."""
        if self.key in observation:
            return observation[self.key]
        inputs = self.flatten(observation)
        if not self.normalise:
            return inputs
        normalised = (inputs - self.mean) / self.std
        return normalised.clamp(-MAX_NORMALISED_INPUT, MAX_NORMALISED_INPUT)

    def flatten(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, width) inputs before normalisation."""
        parts = [_flat(observation[name], spec) for name, spec in self.specs.items()]
        if not parts:  # nothing but images
            some = next(iter(observation.values()))
            return some.new_zeros((some.shape[0], 0), dtype=torch.float32)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    @torch.no_grad()
    def update_stats(self, observation: Mapping[str, Tensor]) -> None:
        """Fold a batch into the running mean and std (Chan, Golub and LeVeque 1983)."""
        if not self.normalise:
            return
        rows = self.flatten(observation)
        old_count, new_count = float(self.count), len(rows)
        # Around the mean of the batch itself, single precision is enough.
        batch_mean = rows.mean(dim=0)
        batch_variance = (rows - batch_mean).square_().mean(dim=0).double()
        weight = new_count / (old_count + new_count)
        mean, std = self.mean.double(), self.std.double()
        delta = batch_mean.double() - mean
        variance = (
            (1 - weight) * std.square() * (old_count > 0)
            + weight * batch_variance
            + weight * (1 - weight) * delta.square() * (old_count > 0)
        )
        self.mean.copy_(mean + weight * delta)
        # An input that never changes keeps its own scale.
        self.std.copy_(torch.where(variance > 1e-12, variance.sqrt(), 1.0))
        self.count += new_count


class ActorCritic(nn.Module):
    """Policy logits and state values.

    The value head predicts normalised targets; `value_mean` and `value_std` convert its output to
    the env's units (PopArt, van Hasselt et al. 2016).

    Args:
        spec: Observation and action spec of the env.
        settings: Architecture.
    """

    value_mean: Tensor
    value_std: Tensor

    def __init__(self, spec: EnvSpec, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        self.action_nvec = spec.action_nvec
        self.logit_bias = spec.logit_bias
        arrays = {name: array for name, array in spec.policy_observation.items() if name != spec.logit_bias}
        images, quantities = split_images(arrays)
        self.inputs = InputLayer(quantities, settings.normalise_observations)
        self.policy_encoder = ImageEncoder(images) if images else None
        self.privileged, value_images = None, images
        if settings.critic == "privileged":
            more, hidden = split_images({name: spec.observation[name] for name in spec.privileged})
            value_images = images | more
            self.privileged = InputLayer(hidden, settings.normalise_observations, PREPROCESSED_PRIVILEGED)
        self.images = tuple(value_images)
        self.value_encoder = self.policy_encoder
        if value_images and not settings.shared:
            self.value_encoder = ImageEncoder(value_images)
        num_inputs = self.inputs.width + _width(self.policy_encoder)
        num_value_inputs = self.inputs.width + _width(self.privileged) + _width(self.value_encoder)
        self.memory_size = settings.memory_size if settings.memory == "gru" else 0
        self.policy_memory = self._make_memory(num_inputs)
        self.value_memory = self.policy_memory if settings.shared else self._make_memory(num_value_inputs)
        # The layers read the state of the memory beside the inputs.
        widths = (num_inputs + self.memory_size, *settings.hidden_sizes)
        value_widths = (num_value_inputs + self.memory_size, *settings.hidden_sizes)
        self.per_action = _per_action_actor(spec, settings)
        if self.per_action is None:
            self.policy_layers = _layers(widths, settings.activation)
        self.value_layers = self.policy_layers if settings.shared else _layers(value_widths, settings.activation)
        if self.per_action is None:
            # A small gain makes the first policy nearly uniform.
            self.policy_head = make_linear(widths[-1], spec.num_logits, gain=0.01)
        self.value_head = make_linear(widths[-1], 1, gain=1.0)
        self._make_outputs(spec)

    def _make_outputs(self, spec: EnvSpec) -> None:
        """What turns logits into actions, and normalised values into values."""
        self.action_shape = spec.action_shape
        self.bounds = None if spec.continuous_action is None else ActionBounds(spec.continuous_action)
        # Continuous actions: state-independent log standard deviations.
        initial_log_std = math.log(self.settings.initial_action_std)
        self.log_std = (
            None if self.bounds is None else nn.Parameter(torch.full((spec.num_action_dims,), initial_log_std))
        )
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_std", torch.ones(()))

    @torch.no_grad()
    def preprocess(self, observation: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Flatten and normalise once what several passes will read."""
        preprocessed = {PREPROCESSED: self.inputs(observation)}
        if self.privileged is not None:
            preprocessed[PREPROCESSED_PRIVILEGED] = self.privileged(observation)
        # Images stay bytes: as floats they would take four times the memory.
        others = (*self.images, *(() if self.logit_bias is None else (self.logit_bias,)))
        if self.per_action is not None:
            others = (*others, *self.per_action.inputs)
        return preprocessed | {name: observation[name] for name in others}

    def logits(self, observation: Mapping[str, Tensor], sequences: Sequences | None = None) -> Tensor:
        """(rows, num_logits) policy logits.

        Args:
            observation: Named arrays, each (rows, ...).
            sequences: For a network with memory; None where every row begins an episode.
        """
        if self.per_action is not None:
            return self._add_logit_bias(self.per_action(observation), observation)
        inputs = _with_images(self.inputs(observation), observation, self.policy_encoder)
        logits: Tensor = self.policy_head(self.policy_layers(self._remembering(inputs, sequences)))
        return self._add_logit_bias(logits, observation)

    def logits_and_state(self, observation: Mapping[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, num_logits) logits of a network with memory, and its next (rows, memory size) state."""
        assert self.policy_memory is not None
        inputs = _with_images(self.inputs(observation), observation, self.policy_encoder)
        state = self.policy_memory.step(inputs, state)
        logits: Tensor = self.policy_head(self.policy_layers(torch.cat([inputs, state], dim=-1)))
        return self._add_logit_bias(logits, observation), state

    def value(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows,) values in the env's units; not of a network with memory."""
        return self.normalised_value(observation) * self.value_std + self.value_mean

    def value_and_states(
        self, observation: Mapping[str, Tensor], state: Tensor, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(rows,) values in the env's units of a network with memory, and its (rows, size) states after each row.

        Args:
            observation: Named arrays, each (rows, ...), as sequences of equal length.
            state: (sequences, memory size) states before the first step of each sequence.
            starts: (rows,) True where an episode begins; None for none.
        """
        assert self.value_memory is not None
        inputs = self._value_inputs(self.inputs(observation), observation)
        states = self.value_memory(inputs, state, starts)
        value: Tensor = self.value_head(self.value_layers(torch.cat([inputs, states], dim=-1))).squeeze(-1)
        return value * self.value_std + self.value_mean, states

    def normalised_value(self, observation: Mapping[str, Tensor], sequences: Sequences | None = None) -> Tensor:
        """(rows,) values on the scale of normalised targets; arguments as for `logits`."""
        inputs = self._value_inputs(self.inputs(observation), observation)
        value: Tensor = self.value_head(self.value_layers(self._remembering_value(inputs, sequences))).squeeze(-1)
        return value

    def logits_and_value(
        self, observation: Mapping[str, Tensor], sequences: Sequences | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits and normalised value in one pass, sharing what can be shared; arguments as for `logits`."""
        if self.per_action is not None:
            return self.logits(observation), self.normalised_value(observation)
        flat = self.inputs(observation)
        inputs = _with_images(flat, observation, self.policy_encoder)
        policy_features = self.policy_layers(self._remembering(inputs, sequences))
        if self.settings.shared:
            value_features = policy_features
        else:
            inputs = self._value_inputs(flat, observation)
            value_features = self.value_layers(self._remembering_value(inputs, sequences))
        logits = self._add_logit_bias(self.policy_head(policy_features), observation)
        return logits, self.value_head(value_features).squeeze(-1)

    def distribution(self, logits: Tensor, mask: Tensor | None) -> ActionDistribution:
        """Action distribution of (rows, num_logits) logits, on the device they are on."""
        if self.log_std is None:
            return MaskedCategorical(logits, mask, self.action_nvec)
        return DiagonalGaussian(logits, self.log_std.to(logits.device))

    def update_stats(self, observation: Mapping[str, Tensor]) -> None:
        """Fold a batch into the running statistics of normalised inputs."""
        self.inputs.update_stats(observation)
        if self.privileged is not None:
            self.privileged.update_stats(observation)
        if self.per_action is not None:
            self.per_action.update_stats(observation)

    def policy_parameters(self) -> list[nn.Parameter]:
        if self.per_action is not None:
            return list(self.per_action.parameters())
        return _parameters(self.policy_encoder, self.policy_memory, self.policy_layers, self.policy_head) + (
            [] if self.log_std is None else [self.log_std]
        )

    def value_parameters(self) -> list[nn.Parameter]:
        return _parameters(self.value_encoder, self.value_memory, self.value_layers, self.value_head)

    @torch.no_grad()
    def rescale_values(self, mean: float, std: float, keep_values: bool = True) -> None:
        """Change the normalisation of value targets without changing values (PopArt).

        Args:
            mean: New mean of value targets.
            std: New standard deviation of value targets.
            keep_values: Adapt the value head so that its outputs in the env's units stay the same;
                False for a network that has learned nothing yet.
        """
        if keep_values:
            rescale_head(self.value_head, float(self.value_mean), float(self.value_std), mean, std)
        self.value_mean.fill_(mean)
        self.value_std.fill_(std)

    def _make_memory(self, num_inputs: int) -> GatedRecurrentUnit | None:
        return GatedRecurrentUnit(num_inputs, self.memory_size) if self.memory_size else None

    def _remembering(self, inputs: Tensor, sequences: Sequences | None) -> Tensor:
        """The policy's inputs with the state of its memory, if it has one."""
        state = None if sequences is None else sequences.policy_state
        return _with_memory(inputs, self.policy_memory, state, sequences)

    def _remembering_value(self, inputs: Tensor, sequences: Sequences | None) -> Tensor:
        """The same for the value function."""
        state = None if sequences is None else sequences.value_state
        return _with_memory(inputs, self.value_memory, state, sequences)

    def _value_inputs(self, flat: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """Inputs of the value layers: flat inputs, privileged ones, features of images."""
        if self.privileged is not None:
            flat = torch.cat([flat, self.privileged(observation)], dim=-1)
        return _with_images(flat, observation, self.value_encoder)

    def _add_logit_bias(self, logits: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        return logits if self.logit_bias is None else logits + observation[self.logit_bias]


def rescale_head(head: nn.Linear, old_mean: float, old_std: float, mean: float, std: float) -> None:
    """Change a head that predicts normalised values to another normalisation of the same values."""
    head.weight *= old_std / std
    head.bias.copy_((head.bias * old_std + old_mean - mean) / std)


def tensors(arrays: Arrays, device: torch.device) -> dict[str, Tensor]:
    """The arrays as tensors: shared memory on the CPU, copies elsewhere."""
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def multilayer_perceptron(
    widths: tuple[int, ...], outputs: int, activation: Activation, gain: float, layer_norm: bool = False
) -> nn.Sequential:
    """Hidden layers between these widths (the first is the inputs') and a linear head.

    Args:
        widths: Units of the inputs and of each hidden layer.
        outputs: Units of the head.
        activation: Activation function of the hidden layers.
        gain: Gain of the head's orthogonal initialisation.
        layer_norm: Layer normalisation (Ba et al. 2016) before each activation.
    """
    return nn.Sequential(*_layers(widths, activation, layer_norm), make_linear(widths[-1], outputs, gain))


def _per_action_actor(spec: EnvSpec, settings: NetworkSettings) -> PerActionActor | None:
    if settings.architecture == "mlp":
        return None
    from hundredfold.algorithms.per_action import JointActor, PerActionActor

    return JointActor(spec, settings) if settings.architecture == "joint" else PerActionActor(spec, settings)


def split_images(arrays: Mapping[str, ArraySpec]) -> tuple[dict[str, ArraySpec], dict[str, ArraySpec]]:
    """The images among these arrays, and the others."""
    images = {name: array for name, array in arrays.items() if image_layout(array)}
    return images, {name: array for name, array in arrays.items() if name not in images}


def _width(part: InputLayer | ImageEncoder | None) -> int:
    return 0 if part is None else part.width


def _with_images(inputs: Tensor, observation: Mapping[str, Tensor], encoder: ImageEncoder | None) -> Tensor:
    """The flat inputs followed by the features of the images."""
    return inputs if encoder is None else torch.cat([inputs, encoder(observation)], dim=-1)


def _with_memory(
    inputs: Tensor, memory: GatedRecurrentUnit | None, state: Tensor | None, sequences: Sequences | None
) -> Tensor:
    """The inputs followed by the state of the memory after each of them; without sequences it was 0 before."""
    if memory is None:
        return inputs
    if state is None or sequences is None:
        return torch.cat([inputs, memory.step(inputs, inputs.new_zeros((inputs.shape[0], memory.size)))], dim=-1)
    return torch.cat([inputs, memory(inputs, state, sequences.starts)], dim=-1)


def _parameters(*modules: nn.Module | None) -> list[nn.Parameter]:
    return [weight for module in modules if module is not None for weight in module.parameters()]


def _flat(array: Tensor, spec: ArraySpec) -> Tensor:
    """(rows, inputs) of one named array; categories one-hot."""
    # Not `len`, which would fix the number of rows of an exported policy.
    entries = array.reshape(array.shape[0], spec.size)
    if spec.categories is None:
        return entries.float()
    entries = entries.long()
    one_hot = [F.one_hot(entries[:, i], count) for i, count in enumerate(spec.categories)]
    return torch.cat(one_hot, dim=-1).float()


def _layers(widths: tuple[int, ...], activation: Activation, layer_norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(widths):
        layers.append(make_linear(num_inputs, num_outputs, gain=math.sqrt(2)))
        if layer_norm:
            layers.append(nn.LayerNorm(num_outputs))
        layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def make_linear(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights of this gain and zero biases."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
