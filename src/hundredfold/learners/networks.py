"""The networks: named arrays in, logits and a value out.

One small module serves every world: quantities are flattened, category numbers become one-hot, and
everything is laid side by side before a plain stack of layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hundredfold.core.batch import Arrays, ArraySpec, WorldSpec
from hundredfold.core.errors import SettingsError

# Scaled inputs beyond this many spreads are cut off.
MAX_INPUT: Final = 10.0

# An observation that has been laid side by side and scaled already goes by this name.
PREPARED: Final = "prepared inputs"

Activation = Literal["relu", "silu", "tanh"]

ACTIVATIONS: Final[dict[Activation, type[nn.Module]]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Size and shape of the policy's and the value's network."""

    hidden: tuple[int, ...] = (64, 64)
    """Width of each hidden layer."""
    activation: Activation = "relu"
    """What stands between layers; tanh takes about twice the time of the others."""
    shared: bool = False
    """Use one stack of hidden layers for policy and value instead of two."""
    normalise_observations: bool = False
    """Scale each input by its running mean and spread; for worlds whose numbers are large."""

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise SettingsError(
                f"hidden must name at least one layer of at least 1 unit, got {self.hidden}."
            )


class Inputs(nn.Module):
    """Lays the named arrays of an observation side by side as one row of numbers."""

    mean: Tensor
    spread: Tensor
    count: Tensor

    def __init__(self, specs: Mapping[str, ArraySpec], normalise: bool) -> None:
        super().__init__()
        self.specs = dict(specs)
        self.width = sum(
            sum(spec.categories) if spec.categories else spec.size for spec in self.specs.values()
        )
        self.normalise = normalise
        if normalise:
            self.register_buffer("mean", torch.zeros(self.width))
            self.register_buffer("spread", torch.ones(self.width))
            self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        if PREPARED in observation:
            return observation[PREPARED]
        row = self.side_by_side(observation)
        if not self.normalise:
            return row
        return ((row - self.mean) / self.spread).clamp(-MAX_INPUT, MAX_INPUT)

    def side_by_side(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, width) raw inputs."""
        pieces = [_flat(observation[name], spec) for name, spec in self.specs.items()]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)

    @torch.no_grad()
    def learn_scale(self, observation: Mapping[str, Tensor]) -> None:
        """Fold a batch into the running mean and spread (Chan, Golub and LeVeque 1983)."""
        if not self.normalise:
            return
        rows = self.side_by_side(observation)
        seen, new = float(self.count), len(rows)
        # Around the mean of the batch itself, single precision is enough.
        middle = rows.mean(dim=0)
        scatter = (rows - middle).square_().mean(dim=0).double()
        share = new / (seen + new)
        mean, spread = self.mean.double(), self.spread.double()
        step = middle.double() - mean
        variance = (
            (1 - share) * spread.square() * (seen > 0)
            + share * scatter
            + share * (1 - share) * step.square() * (seen > 0)
        )
        self.mean.copy_(mean + share * step)
        # An input that never changes carries nothing: leave it at its own scale.
        self.spread.copy_(torch.where(variance > 1e-12, variance.sqrt(), 1.0))
        self.count += new


class ActorCritic(nn.Module):
    """Logits of every action and an estimate of what the future pays.

    The value head works on targets with mean 0 and spread 1; `value_mean` and `value_spread` bring
    its output back to the world's own scale.
    """

    value_mean: Tensor
    value_spread: Tensor

    def __init__(self, spec: WorldSpec, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        self.logit_bias = spec.logit_bias
        looked_at = {
            name: array for name, array in spec.observation.items() if name != spec.logit_bias
        }
        self.inputs = Inputs(looked_at, settings.normalise_observations)
        widths = (self.inputs.width, *settings.hidden)
        self.policy_layers = _layers(widths, settings.activation)
        self.value_layers = (
            self.policy_layers if settings.shared else _layers(widths, settings.activation)
        )
        # A small policy head makes the first policy nearly uniform.
        self.policy_head = _linear(widths[-1], spec.num_logits, gain=0.01)
        self.value_head = _linear(widths[-1], 1, gain=1.0)
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_spread", torch.ones(()))

    @torch.no_grad()
    def prepared(self, observation: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The observation as the layers see it, for whoever passes over it many times."""
        ready = {PREPARED: self.inputs(observation)}
        return ready | {name: observation[name] for name in (self.logit_bias,) if name is not None}

    def logits(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, num_logits)."""
        found: Tensor = self.policy_head(self.policy_layers(self.inputs(observation)))
        return self._leaning(found, observation)

    def scaled_value(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows,) on the scale of normalised targets."""
        found: Tensor = self.value_head(self.value_layers(self.inputs(observation))).squeeze(-1)
        return found

    def both(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits and scaled value, sharing what can be shared."""
        row = self.inputs(observation)
        thought = self.policy_layers(row)
        other = thought if self.settings.shared else self.value_layers(row)
        logits = self._leaning(self.policy_head(thought), observation)
        return logits, self.value_head(other).squeeze(-1)

    def value(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows,) in the world's own units."""
        return self.scaled_value(observation) * self.value_spread + self.value_mean

    def _leaning(self, logits: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """The logits with what the world itself has to say about them."""
        return logits if self.logit_bias is None else logits + observation[self.logit_bias]

    def policy_parameters(self) -> list[nn.Parameter]:
        return [*self.policy_layers.parameters(), *self.policy_head.parameters()]

    def value_parameters(self) -> list[nn.Parameter]:
        return [*self.value_layers.parameters(), *self.value_head.parameters()]

    @torch.no_grad()
    def rescale_values(self, mean: float, spread: float, keep_values: bool = True) -> None:
        """Change the scale of value targets but no value (PopArt, van Hasselt et al. 2016).

        A network that has learned nothing yet has no values worth keeping.
        """
        old_mean, old_spread = float(self.value_mean), float(self.value_spread)
        if keep_values:
            head = self.value_head
            head.weight *= old_spread / spread
            head.bias.copy_((head.bias * old_spread + old_mean - mean) / spread)
        self.value_mean.fill_(mean)
        self.value_spread.fill_(spread)


def tensors(arrays: Arrays, device: torch.device) -> dict[str, Tensor]:
    """The arrays as tensors: shared memory on the CPU, copies elsewhere."""
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def _flat(array: Tensor, spec: ArraySpec) -> Tensor:
    """(rows, numbers) of one named array."""
    if spec.categories is None:
        return array.reshape(len(array), -1).float()
    entries = array.reshape(len(array), -1).long()
    hot = [F.one_hot(entries[:, i], count) for i, count in enumerate(spec.categories)]
    return torch.cat(hot, dim=-1).float()


def stack_of(
    widths: tuple[int, ...], outputs: int, activation: Activation, gain: float
) -> nn.Sequential:
    """Hidden layers of these widths, the first being the inputs', and a linear head."""
    return nn.Sequential(*_layers(widths, activation), _linear(widths[-1], outputs, gain))


def _layers(widths: tuple[int, ...], activation: Activation) -> nn.Sequential:
    stack: list[nn.Module] = []
    for before, after in pairwise(widths):
        stack += [_linear(before, after, gain=math.sqrt(2)), ACTIVATIONS[activation]()]
    return nn.Sequential(*stack)


def _linear(before: int, after: int, gain: float) -> nn.Linear:
    layer = nn.Linear(before, after)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
