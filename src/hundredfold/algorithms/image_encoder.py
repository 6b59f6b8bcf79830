"""Pictures: which observations are one, and the small convolutional network that looks at them.

Pictures stay bytes until a minibatch reaches the network; here they are scaled by their bounds and
pass through layers after Mnih et al. (2015), with smaller kernels where there is less to see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hundredfold.core.batch import ArraySpec

# Below this many pixels on a side, numbers side by side serve as well. Without a third axis bytes
# are as often a table: a grey picture must be larger.
SMALLEST_SIDE: Final = 8
SMALLEST_GREY_SIDE: Final = 16
# Numbers that one picture comes down to.
FEATURES: Final = 128


class Layer(NamedTuple):
    """One convolution."""

    channels: int
    kernel: int
    stride: int


# From this many pixels on the shorter side, these layers.
LAYERS: Final[dict[int, tuple[Layer, ...]]] = {
    48: (Layer(32, 8, 4), Layer(64, 4, 2), Layer(64, 3, 1)),
    16: (Layer(16, 4, 2), Layer(32, 3, 2)),
    SMALLEST_SIDE: (Layer(16, 3, 1), Layer(32, 3, 2)),
}


class Layout(NamedTuple):
    """How the pixels of a picture lie in its array."""

    channels: int
    height: int
    width: int
    channels_first: bool


def layout_of(spec: ArraySpec) -> Layout | None:
    """How this array is a picture; None where it is not, or too small to look at as one.

    Pictures are bytes with two axes (grey) or three. The channels are the first axis where that is
    shorter than both others, else the last, as Gymnasium has it.
    """
    if spec.dtype != "uint8" or spec.categories is not None or len(spec.shape) not in (2, 3):
        return None
    first, *_, last = spec.shape
    smallest = SMALLEST_SIDE
    if len(spec.shape) == 2:
        layout = Layout(1, first, last, channels_first=True)
        smallest = SMALLEST_GREY_SIDE
    elif first < min(spec.shape[1:]):
        layout = Layout(first, spec.shape[1], last, channels_first=True)
    else:
        layout = Layout(last, first, spec.shape[1], channels_first=False)
    return layout if min(layout.height, layout.width) >= smallest else None


class Eyes(nn.Module):
    """Looks at the pictures of an observation: each comes down to a row of features."""

    def __init__(self, pictures: Mapping[str, ArraySpec]) -> None:
        super().__init__()
        self.names = list(pictures)
        self.width = FEATURES * len(pictures)
        self.eyes = nn.ModuleList([Eye(spec) for spec in pictures.values()])

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, width)."""
        found = [eye(observation[name]) for name, eye in zip(self.names, self.eyes, strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found, dim=-1)


class Eye(nn.Module):
    """Looks at one picture."""

    darkest: Tensor
    contrast: Tensor

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        layout = layout_of(spec)
        assert layout is not None, "only pictures are looked at"
        self.layout = layout
        low, high = brightness(spec)
        # Buffers: a policy that is loaded without its env knows them from its weights.
        self.register_buffer("darkest", torch.tensor(low))
        self.register_buffer("contrast", torch.tensor(1.0 / (high - low)))
        side = min(layout.height, layout.width)
        layers = next(layers for least, layers in LAYERS.items() if side >= least)
        stack: list[nn.Module] = []
        channels, height, width = layout[:3]
        for layer in layers:
            stack += [_begun(nn.Conv2d(channels, *layer)), nn.ReLU()]
            channels = layer.channels
            height, width = ((s - layer.kernel) // layer.stride + 1 for s in (height, width))
        flat = nn.Linear(channels * height * width, FEATURES)
        self.stack = nn.Sequential(*stack, nn.Flatten(), _begun(flat), nn.ReLU())

    def forward(self, picture: Tensor) -> Tensor:
        """(rows, FEATURES) of (rows, *shape) bytes."""
        channels, height, width, channels_first = self.layout
        if channels_first:
            planes = picture.reshape(-1, channels, height, width)
        else:
            planes = picture.permute(0, 3, 1, 2)
        found: Tensor = self.stack((planes.float() - self.darkest) * self.contrast)
        return found


def brightness(spec: ArraySpec) -> tuple[float, float]:
    """The darkest and the brightest a picture can be, over all its pixels."""
    low, high = float(np.min(spec.low)), float(np.max(spec.high))
    low, high = max(low, 0.0), min(high, 255.0)
    return (low, high) if high > low else (0.0, 255.0)


def _begun(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
