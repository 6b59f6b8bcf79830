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
from hundredfold.core.batch import Arrays, ArraySpec, EnvSpec
from hundredfold.core.bounds import check_bounds
from hundredfold.core.errors import SettingsError

if TYPE_CHECKING:
    from hundredfold.algorithms.per_action import PerActionActor

# Normalised inputs are clipped to this many standard deviations.
MAX_NORMALISED_INPUT: Final = 10.0

# Key of an observation that has been flattened and normalised already.
PREPROCESSED: Final = "preprocessed inputs"

Activation = Literal["relu", "silu", "tanh"]
Architecture = Literal["mlp", "per_action"]

ACTIVATIONS: Final[dict[Activation, type[nn.Module]]] = {"relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Architecture of the policy and value networks."""

    architecture: Architecture = "mlp"
    """Policy network: `mlp` reads the whole observation; `per_action` scores each action by its own
    features with shared weights (dvrp with --observation offers)."""
    hidden_sizes: tuple[Annotated[int, Interval(ge=1, le=1_000_000)], ...] = (64, 64)
    """Units of each hidden layer."""
    activation: Activation = "relu"
    """Activation function between layers; tanh takes about twice the time of the others."""
    shared: bool = False
    """Share the hidden layers between policy and value."""
    normalise_observations: bool = False
    """Normalise inputs by their running mean and standard deviation."""
    initial_action_std: Annotated[float, Gt(0), Lt(math.inf)] = 0.5
    """Initial standard deviation of continuous actions, in half-widths of their range."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.hidden_sizes:
            raise SettingsError("hidden_sizes must name at least one layer, got none.")
        if self.architecture == "per_action" and self.shared:
            raise SettingsError("a per_action policy shares no layers with the value; turn off shared.")


class InputLayer(nn.Module):
    """Flattens named observation arrays into one row of inputs, optionally normalised.

    Args:
        specs: The arrays, in the order of the inputs; categories are one-hot encoded.
        normalise: Keep running statistics and normalise by them.
    """

    mean: Tensor
    std: Tensor
    count: Tensor

    def __init__(self, specs: Mapping[str, ArraySpec], normalise: bool) -> None:
        super().__init__()
        self.specs = dict(specs)
        self.width = sum(sum(spec.categories) if spec.categories else spec.size for spec in self.specs.values())
        self.normalise = normalise
        if normalise:
            self.register_buffer("mean", torch.zeros(self.width))
            self.register_buffer("std", torch.ones(self.width))
            self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, width) inputs of the first layer."""
        if PREPROCESSED in observation:
            return observation[PREPROCESSED]
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
        arrays = {name: array for name, array in spec.observation.items() if name != spec.logit_bias}
        images = {name: array for name, array in arrays.items() if image_layout(array)}
        self.images = tuple(images)
        self.inputs = InputLayer(
            {name: array for name, array in arrays.items() if name not in images}, settings.normalise_observations
        )
        self.policy_encoder = ImageEncoder(images) if images else None
        self.value_encoder = self.policy_encoder if settings.shared or not images else ImageEncoder(images)
        num_features = 0 if self.policy_encoder is None else self.policy_encoder.width
        widths = (self.inputs.width + num_features, *settings.hidden_sizes)
        self.per_action = _per_action_actor(spec, settings)
        if self.per_action is None:
            self.policy_layers = _layers(widths, settings.activation)
        self.value_layers = self.policy_layers if settings.shared else _layers(widths, settings.activation)
        if self.per_action is None:
            # A small gain makes the first policy nearly uniform.
            self.policy_head = make_linear(widths[-1], spec.num_logits, gain=0.01)
        self.value_head = make_linear(widths[-1], 1, gain=1.0)
        self.action_shape = spec.action_shape
        self.bounds = None if spec.continuous_action is None else ActionBounds(spec.continuous_action)
        # Continuous actions: state-independent log standard deviations.
        initial_log_std = math.log(settings.initial_action_std)
        self.log_std = (
            None if self.bounds is None else nn.Parameter(torch.full((spec.num_action_dims,), initial_log_std))
        )
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_std", torch.ones(()))

    @torch.no_grad()
    def preprocess(self, observation: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Flatten and normalise once what several passes will read."""
        preprocessed = {PREPROCESSED: self.inputs(observation)}
        # Images stay bytes: as floats they would take four times the memory.
        others = (*self.images, *(() if self.logit_bias is None else (self.logit_bias,)))
        if self.per_action is not None:
            others = (*others, *self.per_action.inputs)
        return preprocessed | {name: observation[name] for name in others}

    def logits(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, num_logits) policy logits."""
        if self.per_action is not None:
            return self._add_logit_bias(self.per_action(observation), observation)
        inputs = _with_images(self.inputs(observation), observation, self.policy_encoder)
        logits: Tensor = self.policy_head(self.policy_layers(inputs))
        return self._add_logit_bias(logits, observation)

    def value(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows,) values in the env's units."""
        return self.normalised_value(observation) * self.value_std + self.value_mean

    def normalised_value(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows,) values on the scale of normalised targets."""
        inputs = _with_images(self.inputs(observation), observation, self.value_encoder)
        value: Tensor = self.value_head(self.value_layers(inputs)).squeeze(-1)
        return value

    def logits_and_value(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits and normalised value in one pass, sharing what can be shared."""
        if self.per_action is not None:
            return self.logits(observation), self.normalised_value(observation)
        flat = self.inputs(observation)
        inputs = _with_images(flat, observation, self.policy_encoder)
        policy_features = self.policy_layers(inputs)
        if self.settings.shared:
            value_features = policy_features
        else:
            if self.value_encoder is not None:
                inputs = _with_images(flat, observation, self.value_encoder)
            value_features = self.value_layers(inputs)
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
        if self.per_action is not None:
            self.per_action.update_stats(observation)

    def policy_parameters(self) -> list[nn.Parameter]:
        if self.per_action is not None:
            return list(self.per_action.parameters())
        return _parameters(self.policy_encoder, self.policy_layers, self.policy_head) + (
            [] if self.log_std is None else [self.log_std]
        )

    def value_parameters(self) -> list[nn.Parameter]:
        return _parameters(self.value_encoder, self.value_layers, self.value_head)

    @torch.no_grad()
    def rescale_values(self, mean: float, std: float, keep_values: bool = True) -> None:
        """Change the normalisation of value targets without changing values (PopArt).

        Args:
            mean: New mean of value targets.
            std: New standard deviation of value targets.
            keep_values: Adapt the value head so that its outputs in the env's units stay the same;
                False for a network that has learned nothing yet.
        """
        old_mean, old_std = float(self.value_mean), float(self.value_std)
        if keep_values:
            head = self.value_head
            head.weight *= old_std / std
            head.bias.copy_((head.bias * old_std + old_mean - mean) / std)
        self.value_mean.fill_(mean)
        self.value_std.fill_(std)

    def _add_logit_bias(self, logits: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        return logits if self.logit_bias is None else logits + observation[self.logit_bias]


def tensors(arrays: Arrays, device: torch.device) -> dict[str, Tensor]:
    """The arrays as tensors: shared memory on the CPU, copies elsewhere."""
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def multilayer_perceptron(widths: tuple[int, ...], outputs: int, activation: Activation, gain: float) -> nn.Sequential:
    """Hidden layers between these widths (the first is the inputs') and a linear head.

    Args:
        widths: Units of the inputs and of each hidden layer.
        outputs: Units of the head.
        activation: Activation function of the hidden layers.
        gain: Gain of the head's orthogonal initialisation.
    """
    return nn.Sequential(*_layers(widths, activation), make_linear(widths[-1], outputs, gain))


def _per_action_actor(spec: EnvSpec, settings: NetworkSettings) -> PerActionActor | None:
    if settings.architecture != "per_action":
        return None
    from hundredfold.algorithms.per_action import PerActionActor

    return PerActionActor(spec, settings)


def _with_images(inputs: Tensor, observation: Mapping[str, Tensor], encoder: ImageEncoder | None) -> Tensor:
    """The flat inputs followed by the features of the images."""
    return inputs if encoder is None else torch.cat([inputs, encoder(observation)], dim=-1)


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


def _layers(widths: tuple[int, ...], activation: Activation) -> nn.Sequential:
    layers: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(widths):
        layers += [make_linear(num_inputs, num_outputs, gain=math.sqrt(2)), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


def make_linear(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights of this gain and zero biases."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
