"""Policy networks that predict the cost of every action, by weights shared over actions or not.

For envs whose observations describe each action (`EnvSpec.action_inputs`). The network predicts the
cost of an action if it takes effect, relative to a reference action; logits are minus the expected
costs. With shared weights what is learned about one action holds for all. The penalty of an action is
an input, so the trade-off between costs and penalties can still be chosen when the policy is used.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hundredfold.algorithms.actor_critic import (
    ACTIVATIONS,
    InputLayer,
    NetworkSettings,
    make_linear,
    multilayer_perceptron,
)
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.core.errors import SettingsError

FEATURES, CONTEXT = "features", "context"


class PerActionActor(nn.Module):
    """Logits from per-action features and a context, with weights shared over actions.

    Args:
        spec: Observation and action spec of the env.
        settings: Architecture.
    """

    def __init__(self, spec: EnvSpec, settings: NetworkSettings) -> None:
        super().__init__()
        names = spec.action_inputs
        if names is None:
            raise SettingsError(
                f"--architecture per_action needs observations that describe each action, which {spec.name} "
                "does not have with these settings; for dvrp use --observation offers."
            )
        self.names = names
        self._make_layers(spec.observation[names.features], spec.observation[names.context], settings)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def _make_layers(self, features: ArraySpec, context: ArraySpec, settings: NetworkSettings) -> None:
        num_features = features.shape[-1]
        self.features = InputLayer({FEATURES: ArraySpec((num_features,))}, settings.normalise_observations)
        self.context = InputLayer({CONTEXT: ArraySpec(context.shape)}, settings.normalise_observations)
        first, *others = settings.hidden_sizes
        # One layer over features and context: the context's part is computed once per row.
        self.feature_layer = make_linear(num_features, first, gain=1.0)
        self.context_layer = make_linear(context.size, first, gain=1.0)
        layers: list[nn.Module] = [ACTIVATIONS[settings.activation]()]
        for num_inputs, num_outputs in zip(settings.hidden_sizes, others, strict=False):
            layers += [make_linear(num_inputs, num_outputs, gain=2**0.5), ACTIVATIONS[settings.activation]()]
        self.layers = nn.Sequential(*layers, make_linear(settings.hidden_sizes[-1], 1, gain=0.1))

    def costs(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, actions) predicted cost of each action if it takes effect, relative to the reference."""
        features = observation[self.names.features]
        rows, actions, width = features.shape
        per_action = self.feature_layer(self.features({FEATURES: features.reshape(rows * actions, width)}))
        shared = self.context_layer(self.context({CONTEXT: observation[self.names.context]}))
        hidden = per_action.reshape(rows, actions, -1) + shared[:, None, :]
        scores: Tensor = self.layers(hidden).squeeze(-1)
        return scores - scores[:, self.names.reference, None]

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, actions) logits: minus the expected cost, penalty included, times a learned scale."""
        return self.logits_of(self.costs(observation), observation)

    def logits_of(self, costs: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """(rows, actions) logits of these costs."""
        expected = observation[self.names.probability] * (costs + observation[self.names.penalty])
        return -self.log_scale.exp() * expected

    def update_stats(self, observation: Mapping[str, Tensor]) -> None:
        """Fold a batch into the running statistics of the inputs."""
        features = observation[self.names.features]
        self.features.update_stats({FEATURES: features.reshape(-1, features.shape[-1])})
        self.context.update_stats({CONTEXT: observation[self.names.context]})

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the observations that are read."""
        return self.names.features, self.names.context, self.names.probability, self.names.penalty


class JointActor(PerActionActor):
    """The same from one network that reads all actions at once and has weights of its own for each."""

    def _make_layers(self, features: ArraySpec, context: ArraySpec, settings: NetworkSettings) -> None:
        self.joint = InputLayer({FEATURES: features, CONTEXT: context}, settings.normalise_observations)
        widths = (self.joint.width, *settings.hidden_sizes)
        self.layers = multilayer_perceptron(widths, features.shape[0], settings.activation, gain=0.1)

    def costs(self, observation: Mapping[str, Tensor]) -> Tensor:
        scores: Tensor = self.layers(self.joint(self._named(observation)))
        return scores - scores[:, self.names.reference, None]

    def update_stats(self, observation: Mapping[str, Tensor]) -> None:
        self.joint.update_stats(self._named(observation))

    def _named(self, observation: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {FEATURES: observation[self.names.features], CONTEXT: observation[self.names.context]}
