"""Policies of Stable-Baselines3 with the networks of this package, and their weights copied back.

Their feature extractor is a copy of the network's input layer (one-hot categories, concatenated
arrays, normalisation, image encoder), so weights mean the same in both and checkpoints are
interchangeable.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from hundredfold.algorithms.actor_critic import ACTIVATIONS, ActorCritic, InputLayer, NetworkSettings
from hundredfold.algorithms.image_encoder import ImageEncoder
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.core.batch import Array, EnvSpec
from hundredfold.interop.flat_spaces import unflatten


class FlatFeatureExtractor(BaseFeaturesExtractor):
    """Features from flat observations: input layer, image encoder, shared hidden layers.

    Args:
        observation_space: That of `FlatSpaces`.
        spec: Arrays of the env.
        inputs: Input layer.
        encoder: Image encoder, if any.
        layers: Hidden layers that policy and value share, if any.
        width: Number of features.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        *,
        spec: EnvSpec,
        inputs: InputLayer,
        encoder: ImageEncoder | None = None,
        layers: nn.Sequential | None = None,
        width: int,
    ) -> None:
        super().__init__(observation_space, width)
        self.spec = spec
        # Copies: every policy and target network trains its own.
        self.inputs = deepcopy(inputs)
        self.encoder = deepcopy(encoder)
        self.layers = deepcopy(layers)

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, width)."""
        observation = unflatten(rows, self.spec)
        features: Tensor = self.inputs(observation)
        if self.encoder is not None:
            features = torch.cat([features, self.encoder(observation)], dim=-1)
        return features if self.layers is None else self.layers(features)

    def update_stats(self, observations: Array) -> None:
        """Update the input normalisation with (..., width) flat observations."""
        if self.inputs.normalise:
            rows = torch.from_numpy(observations.reshape(-1, observations.shape[-1]))
            self.inputs.update_stats(unflatten(rows.to(self.inputs.mean.device), self.spec))


def policy_kwargs(network: ActorCritic | QNetwork, spec: EnvSpec, settings: NetworkSettings) -> dict[str, Any]:
    """The `policy_kwargs` that build a policy like this network."""
    if isinstance(network, QNetwork):
        extractor: dict[str, Any] = {"inputs": network.inputs, "width": network.inputs.width}
        return {
            "net_arch": list(settings.hidden_sizes),
            "activation_fn": ACTIVATIONS[settings.activation],
            **_extractor_kwargs(extractor, spec),
        }
    encoder = network.policy_encoder
    width = network.inputs.width + (0 if encoder is None else encoder.width)
    extractor = {"inputs": network.inputs, "encoder": encoder, "width": width}
    hidden = list(settings.hidden_sizes)
    if settings.shared:
        extractor |= {"layers": network.policy_layers, "width": hidden[-1]}
        hidden = []
    kwargs = {
        "net_arch": {"pi": hidden, "vf": hidden},
        "activation_fn": ACTIVATIONS[settings.activation],
        "share_features_extractor": settings.shared or encoder is None,
        **_extractor_kwargs(extractor, spec),
    }
    if network.log_std is not None:
        kwargs["log_std_init"] = float(network.log_std.detach()[0])
    return kwargs


def copy_weights_back(policy: Any, network: ActorCritic | QNetwork) -> None:
    """Copy the weights of a Stable-Baselines3 policy into the network it was built like."""
    if isinstance(network, QNetwork):
        pairs = [(network.inputs, policy.q_net.features_extractor.inputs), (network.layers, policy.q_net.q_net)]
    else:
        pairs = _actor_critic_pairs(policy, network)
        if network.log_std is not None:
            network.log_std.data.copy_(policy.log_std.data)
    for target, source in pairs:
        target.load_state_dict(source.state_dict())


def _actor_critic_pairs(policy: Any, network: ActorCritic) -> list[tuple[nn.Module, nn.Module]]:
    """Modules of the network, each with its counterpart in the policy."""
    actor, critic = policy.pi_features_extractor, policy.vf_features_extractor
    pairs = [
        (network.inputs, actor.inputs),
        (network.policy_head, policy.action_net),
        (network.value_head, policy.value_net),
    ]
    if network.settings.shared:
        pairs.append((network.policy_layers, actor.layers))
    else:
        pairs += [
            (network.policy_layers, policy.mlp_extractor.policy_net),
            (network.value_layers, policy.mlp_extractor.value_net),
        ]
    if network.policy_encoder is not None and network.value_encoder is not None:
        pairs += [(network.policy_encoder, actor.encoder), (network.value_encoder, critic.encoder)]
    return pairs


def _extractor_kwargs(extractor: dict[str, Any], spec: EnvSpec) -> dict[str, Any]:
    return {
        "features_extractor_class": FlatFeatureExtractor,
        "features_extractor_kwargs": {"spec": spec, **extractor},
        # The image encoder scales images itself.
        "normalize_images": False,
    }
