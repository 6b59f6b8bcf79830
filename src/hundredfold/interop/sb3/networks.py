"""Networks of Stable-Baselines3 that are built like ours, and their weights brought home.

Its policies look at an observation through a copy of our own inputs (category numbers one-hot,
arrays side by side, scaled, pictures through convolutions), so every column means the same in both,
and a checkpoint of such a run is one of ours.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from hundredfold.algorithms.actor_critic import (
    ACTIVATIONS,
    ActorCritic,
    InputLayer,
    NetworkSettings,
)
from hundredfold.algorithms.image_encoder import ImageEncoder
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.core.batch import Array, EnvSpec


class Reader(BaseFeaturesExtractor):
    """From a flat row, as `interop.window.Window` lays it, to what our own first layer sees.

    With `layers`, it goes on through a stack that policy and value share.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        *,
        spec: EnvSpec,
        inputs: InputLayer,
        eyes: ImageEncoder | None = None,
        layers: nn.Sequential | None = None,
        width: int,
    ) -> None:
        super().__init__(observation_space, width)
        self.spec = spec
        # Copies: every policy and target network learns with its own.
        self.inputs = deepcopy(inputs)
        self.eyes = deepcopy(eyes)
        self.layers = deepcopy(layers)

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, width)."""
        observation = self.named(rows)
        row: Tensor = self.inputs(observation)
        if self.eyes is not None:
            row = torch.cat([row, self.eyes(observation)], dim=-1)
        return row if self.layers is None else self.layers(row)

    def update_stats(self, seen: Array) -> None:
        """Fold what was seen, as flat rows, into the scale of the inputs."""
        if self.inputs.normalise:
            flat = torch.from_numpy(seen.reshape(-1, seen.shape[-1]))
            self.inputs.update_stats(self.named(flat.to(self.inputs.mean.device)))

    def named(self, rows: Tensor) -> dict[str, Tensor]:
        """The arrays of an observation by name and in their own shape."""
        arrays = self.spec.observation
        pieces = torch.split(rows, [array.size for array in arrays.values()], dim=1)
        return {
            name: piece.reshape(-1, *array.shape)
            for (name, array), piece in zip(arrays.items(), pieces, strict=True)
        }


def policy_options(
    network: ActorCritic | QNetwork, spec: EnvSpec, settings: NetworkSettings
) -> dict[str, Any]:
    """`policy_kwargs` of a policy that is built like this network of ours."""
    if isinstance(network, QNetwork):
        reader: dict[str, Any] = {"inputs": network.inputs, "width": network.inputs.width}
        return {
            "net_arch": list(settings.hidden_sizes),
            "activation_fn": ACTIVATIONS[settings.activation],
            **_read_by(reader, spec),
        }
    eyes = network.policy_encoder
    width = network.inputs.width + (0 if eyes is None else eyes.width)
    reader = {"inputs": network.inputs, "eyes": eyes, "width": width}
    hidden = list(settings.hidden_sizes)
    if settings.shared:
        reader |= {"layers": network.policy_layers, "width": hidden[-1]}
        hidden = []
    options = {
        "net_arch": {"pi": hidden, "vf": hidden},
        "activation_fn": ACTIVATIONS[settings.activation],
        "share_features_extractor": settings.shared or eyes is None,
        **_read_by(reader, spec),
    }
    if network.log_std is not None:
        options["log_std_init"] = float(network.log_std.detach()[0])
    return options


def bring_home(policy: Any, network: ActorCritic | QNetwork) -> None:
    """Copy the weights of a policy of theirs into the network of ours that it was built like."""
    if isinstance(network, QNetwork):
        pairs = [
            (network.inputs, policy.q_net.features_extractor.inputs),
            (network.layers, policy.q_net.q_net),
        ]
    else:
        pairs = _actor_critic_pairs(policy, network)
        if network.log_std is not None:
            network.log_std.data.copy_(policy.log_std.data)
    for mine, theirs in pairs:
        mine.load_state_dict(theirs.state_dict())


def _actor_critic_pairs(policy: Any, network: ActorCritic) -> list[tuple[nn.Module, nn.Module]]:
    actor, critic, stacks = (
        policy.pi_features_extractor,
        policy.vf_features_extractor,
        policy.mlp_extractor,
    )
    pairs = [
        (network.inputs, actor.inputs),
        (network.policy_head, policy.action_net),
        (network.value_head, policy.value_net),
    ]
    if network.settings.shared:
        pairs.append((network.policy_layers, actor.layers))
    else:
        pairs += [
            (network.policy_layers, stacks.policy_net),
            (network.value_layers, stacks.value_net),
        ]
    if network.policy_encoder is not None and network.value_encoder is not None:
        pairs += [(network.policy_encoder, actor.eyes), (network.value_encoder, critic.eyes)]
    return pairs


def _read_by(reader: dict[str, Any], spec: EnvSpec) -> dict[str, Any]:
    return {
        "features_extractor_class": Reader,
        "features_extractor_kwargs": {"spec": spec, **reader},
        # Pictures are scaled by our own eyes.
        "normalize_images": False,
    }
