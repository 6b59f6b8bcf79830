"""The networks: named arrays in, logits and a value out.

One small module serves every env: quantities are flattened, category numbers become one-hot, and
everything is laid side by side before a plain stack of layers. Pictures are looked at first
(`convolution.py`); where actions are numbers, the logits are their means (`gaussian.py`).
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

from hundredfold.algorithms.distributions import Bounds, GaussianChoice, MaskedChoice
from hundredfold.algorithms.image_encoder import Eyes, layout_of
from hundredfold.core.batch import Arrays, ArraySpec, EnvSpec
from hundredfold.core.errors import SettingsError

# Scaled inputs beyond this many spreads are cut off.
MAX_INPUT: Final = 10.0

# An observation that has been laid side by side and scaled already goes by this name.
PREPARED: Final = "prepared inputs"

Activation = Literal["relu", "silu", "tanh"]
Options = MaskedChoice | GaussianChoice

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
    """Scale each input by its running mean and spread; for envs whose numbers are large."""
    action_spread: float = 0.5
    """How widely continuous actions are tried at the start, in half-widths of their range."""

    def __post_init__(self) -> None:
        if not 0 < self.action_spread < math.inf:
            raise SettingsError(
                f"action_spread must be a number above 0, got {self.action_spread}; 0.5 tries "
                "most of the range, 0.1 stays near its middle."
            )
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
        if not pieces:  # nothing but pictures
            some = next(iter(observation.values()))
            return torch.zeros((len(some), 0), device=some.device)
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
    its output back to the env's own scale.
    """

    value_mean: Tensor
    value_spread: Tensor

    def __init__(self, spec: EnvSpec, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        self.action_nvec = spec.action_nvec
        self.logit_bias = spec.logit_bias
        looked_at = {
            name: array for name, array in spec.observation.items() if name != spec.logit_bias
        }
        pictures = {name: array for name, array in looked_at.items() if layout_of(array)}
        self.pictures = tuple(pictures)
        self.inputs = Inputs(
            {name: array for name, array in looked_at.items() if name not in pictures},
            settings.normalise_observations,
        )
        self.policy_eyes = Eyes(pictures) if pictures else None
        self.value_eyes = self.policy_eyes if settings.shared or not pictures else Eyes(pictures)
        seen = 0 if self.policy_eyes is None else self.policy_eyes.width
        widths = (self.inputs.width + seen, *settings.hidden)
        self.policy_layers = _layers(widths, settings.activation)
        self.value_layers = (
            self.policy_layers if settings.shared else _layers(widths, settings.activation)
        )
        # A small policy head makes the first policy nearly uniform.
        self.policy_head = _linear(widths[-1], spec.num_logits, gain=0.01)
        self.value_head = _linear(widths[-1], 1, gain=1.0)
        # Continuous actions: the log of how widely each number is spread, wherever the env stands.
        self.action_shape = spec.action_shape
        self.bounds = None if spec.continuous_action is None else Bounds(spec.continuous_action)
        self.log_spreads = (
            None
            if self.bounds is None
            else nn.Parameter(torch.full((spec.num_action_dims,), math.log(settings.action_spread)))
        )
        self.register_buffer("value_mean", torch.zeros(()))
        self.register_buffer("value_spread", torch.ones(()))

    @torch.no_grad()
    def prepared(self, observation: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The observation as the layers see it, for whoever passes over it many times."""
        ready = {PREPARED: self.inputs(observation)}
        # Pictures stay bytes: as numbers they would take four times the memory.
        kept = (*self.pictures, *(() if self.logit_bias is None else (self.logit_bias,)))
        return ready | {name: observation[name] for name in kept}

    def logits(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, num_logits)."""
        row = _with_pictures(self.inputs(observation), observation, self.policy_eyes)
        found: Tensor = self.policy_head(self.policy_layers(row))
        return self._leaning(found, observation)

    def scaled_value(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows,) on the scale of normalised targets."""
        row = _with_pictures(self.inputs(observation), observation, self.value_eyes)
        found: Tensor = self.value_head(self.value_layers(row)).squeeze(-1)
        return found

    def both(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits and scaled value, sharing what can be shared."""
        numbers = self.inputs(observation)
        row = _with_pictures(numbers, observation, self.policy_eyes)
        thought = self.policy_layers(row)
        if self.settings.shared:
            other = thought
        else:
            if self.value_eyes is not None:
                row = _with_pictures(numbers, observation, self.value_eyes)
            other = self.value_layers(row)
        logits = self._leaning(self.policy_head(thought), observation)
        return logits, self.value_head(other).squeeze(-1)

    def options(self, logits: Tensor, mask: Tensor | None) -> Options:
        """What can be done and how likely it is, from the logits, on the device they are on."""
        if self.log_spreads is None:
            return MaskedChoice(logits, mask, self.action_nvec)
        return GaussianChoice(logits, self.log_spreads.to(logits.device))

    def value(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows,) in the env's own units."""
        return self.scaled_value(observation) * self.value_spread + self.value_mean

    def _leaning(self, logits: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """The logits with what the env itself has to say about them."""
        return logits if self.logit_bias is None else logits + observation[self.logit_bias]

    def policy_parameters(self) -> list[nn.Parameter]:
        return _parameters(self.policy_eyes, self.policy_layers, self.policy_head) + (
            [] if self.log_spreads is None else [self.log_spreads]
        )

    def value_parameters(self) -> list[nn.Parameter]:
        return _parameters(self.value_eyes, self.value_layers, self.value_head)

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


def _with_pictures(row: Tensor, observation: Mapping[str, Tensor], eyes: Eyes | None) -> Tensor:
    """The numbers of an observation, and beside them what these eyes make of its pictures."""
    return row if eyes is None else torch.cat([row, eyes(observation)], dim=-1)


def _parameters(*parts: nn.Module | None) -> list[nn.Parameter]:
    return [weights for part in parts if part is not None for weights in part.parameters()]


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
