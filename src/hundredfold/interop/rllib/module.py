"""Our network as an RLModule: the same weights, the same masks, RLlib's own learner."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchMultiCategorical
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor

from hundredfold.algorithms.actor_critic import ActorCritic
from hundredfold.algorithms.distributions import FORBIDDEN_LOGIT
from hundredfold.core.batch import EnvSpec


class ActorCriticModule(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc, unused-ignore]
    """Reads rows of `envs.FlatVectorEnv`; what a mask forbids has no probability.

    Choices of several parts and continuous actions are drawn as RLlib draws them, from the outputs
    of our network.
    """

    def setup(self) -> None:
        model: Any = self.model_config
        self.env: EnvSpec = model["env"]
        self.network = ActorCritic(self.env, model["network"])
        if "inputs" in model:
            self.network.inputs.load_state_dict(model["inputs"])
        if len(self.env.action_nvec) > 1:
            # Its types call the class an object of that class.
            drawn: Any = TorchMultiCategorical
            self.action_dist_cls = drawn.get_partial_dist_cls(input_lens=[*self.env.action_nvec])

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        rows = batch[Columns.OBS]
        logits = self.network.logits(self.named(rows))
        if self.network.log_std is not None:
            logits = torch.cat([logits, self.network.log_std.expand_as(logits)], dim=-1)
        elif self.env.has_mask:
            allowed = rows[:, -self.env.num_logits :] > 0.5
            logits = torch.where(allowed, logits, FORBIDDEN_LOGIT)
        return {Columns.ACTION_DIST_INPUTS: logits}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """(rows,) in the env's own units."""
        return self.network.value(self.named(batch[Columns.OBS]))

    def named(self, rows: Tensor) -> dict[str, Tensor]:
        """The arrays of an observation by name and in their own shape."""
        arrays = self.env.observation
        sizes = [array.size for array in arrays.values()]
        pieces = torch.split(rows[:, : sum(sizes)], sizes, dim=1)
        return {
            name: piece.reshape(-1, *array.shape)
            for (name, array), piece in zip(arrays.items(), pieces, strict=True)
        }
