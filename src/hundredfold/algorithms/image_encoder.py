"""Image encoder: which observations are images, and the convolutional network for them.

Images stay bytes until a minibatch reaches the network. There they are scaled by their bounds and
pass convolutions after Mnih et al. (2015), with smaller kernels for smaller images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hundredfold.core.batch import ArraySpec

# Smaller arrays are flattened instead. Bytes without a channel axis are as often a table, so a
# greyscale image must be larger.
MIN_SIDE: Final = 8
MIN_GREYSCALE_SIDE: Final = 16
# Features per image.
NUM_FEATURES: Final = 128


class ConvLayer(NamedTuple):
    """Parameters of one convolution."""

    channels: int
    kernel: int
    stride: int


# Layers by the least number of pixels on the shorter side.
LAYERS: Final[dict[int, tuple[ConvLayer, ...]]] = {
    48: (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1)),
    16: (ConvLayer(16, 4, 2), ConvLayer(32, 3, 2)),
    MIN_SIDE: (ConvLayer(16, 3, 1), ConvLayer(32, 3, 2)),
}


class ImageLayout(NamedTuple):
    """Axes of an image array."""

    channels: int
    height: int
    width: int
    channels_first: bool


def image_layout(spec: ArraySpec) -> ImageLayout | None:
    """Layout of an image, or None for an array that is not one or is too small.

    Images are bytes with two axes (greyscale) or three. The channels are the first axis where that
    is shorter than both others, else the last, as in Gymnasium.
    """
    if spec.dtype != "uint8" or spec.categories is not None or len(spec.shape) not in (2, 3):
        return None
    first, *_, last = spec.shape
    min_side = MIN_SIDE
    if len(spec.shape) == 2:
        layout = ImageLayout(1, first, last, channels_first=True)
        min_side = MIN_GREYSCALE_SIDE
    elif first < min(spec.shape[1:]):
        layout = ImageLayout(first, spec.shape[1], last, channels_first=True)
    else:
        layout = ImageLayout(last, first, spec.shape[1], channels_first=False)
    return layout if min(layout.height, layout.width) >= min_side else None


class ImageEncoder(nn.Module):
    """Encodes every image of an observation into `NUM_FEATURES` features.

    Args:
        images: Specs of the images by name.
    """

    def __init__(self, images: Mapping[str, ArraySpec]) -> None:
        super().__init__()
        self.names = list(images)
        self.width = NUM_FEATURES * len(images)
        self.encoders = nn.ModuleList([SingleImageEncoder(spec) for spec in images.values()])

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, width) features."""
        features = [encoder(observation[name]) for name, encoder in zip(self.names, self.encoders, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, dim=-1)


class SingleImageEncoder(nn.Module):
    """Convolutional network for one image."""

    low: Tensor
    scale: Tensor

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        layout = image_layout(spec)
        assert layout is not None, "the array is not an image"
        self.layout = layout
        low, high = pixel_bounds(spec)
        # Buffers: a policy that is loaded without its env knows them from its weights.
        self.register_buffer("low", torch.tensor(low))
        self.register_buffer("scale", torch.tensor(1.0 / (high - low)))
        side = min(layout.height, layout.width)
        layers = next(layers for least, layers in LAYERS.items() if side >= least)
        modules: list[nn.Module] = []
        channels, height, width = layout[:3]
        for layer in layers:
            modules += [_initialised(nn.Conv2d(channels, *layer)), nn.ReLU()]
            channels = layer.channels
            height, width = ((s - layer.kernel) // layer.stride + 1 for s in (height, width))
        head = nn.Linear(channels * height * width, NUM_FEATURES)
        self.layers = nn.Sequential(*modules, nn.Flatten(), _initialised(head), nn.ReLU())

    def forward(self, image: Tensor) -> Tensor:
        """(rows, NUM_FEATURES) features of (rows, *shape) bytes."""
        channels, height, width, channels_first = self.layout
        planes = image.reshape(-1, channels, height, width) if channels_first else image.permute(0, 3, 1, 2)
        features: Tensor = self.layers((planes.float() - self.low) * self.scale)
        return features


def pixel_bounds(spec: ArraySpec) -> tuple[float, float]:
    """Lowest and highest pixel value of an image, within 0..255."""
    low, high = float(np.min(spec.low)), float(np.max(spec.high))
    low, high = max(low, 0.0), min(high, 255.0)
    return (low, high) if high > low else (0.0, 255.0)


def _initialised(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
