"""Weights of networks and optimisers as plain arrays, and back; nothing is ever unpickled."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from hundredfold.core.batch import Array, Arrays, State
from hundredfold.core.errors import CheckpointError


def network_arrays(network: nn.Module) -> Arrays:
    """Copies of all parameters and buffers by name."""
    return {name: _array(tensor) for name, tensor in network.state_dict().items()}


def load_network(network: nn.Module, state: State) -> None:
    """Load weights into a network; raises on weights of another architecture."""
    check_weights(network, state)
    network.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in state.items()})


def check_weights(network: nn.Module, state: State) -> None:
    """Raise a CheckpointError on weights of another architecture; works on the device "meta", too."""
    wanted = network.state_dict()
    if wanted.keys() != state.keys():
        odd = sorted(wanted.keys() ^ state.keys())
        raise CheckpointError(
            f"the saved weights do not fit this network (differing: {', '.join(odd[:4])}); "
            "load them with the settings of the run that made them."
        )
    for name, tensor in wanted.items():
        if tuple(state[name].shape) != tuple(tensor.shape):
            raise CheckpointError(
                f"the saved weight {name!r} has shape {tuple(state[name].shape)}, this network "
                f"wants {tuple(tensor.shape)}; use the settings of the run that made it."
            )


def optimiser_arrays(optimiser: torch.optim.Optimizer) -> Arrays:
    """Moments and step counts, by parameter number; empty before the first step."""
    return {
        f"{number}/{key}": _array(value)
        for number, moments in optimiser.state_dict()["state"].items()
        for key, value in moments.items()
    }


def load_optimiser(optimiser: torch.optim.Optimizer, state: State) -> None:
    """Load an optimiser's moments; learning rates come from the settings."""
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, array in state.items():
        number, _, key = name.partition("/")
        moments.setdefault(int(number), {})[key] = torch.from_numpy(np.array(array))
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().numpy().copy()
