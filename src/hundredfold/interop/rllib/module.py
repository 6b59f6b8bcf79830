"""The actor-critic network of this package as an RLModule, with action masks."""

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
from hundredfold.interop.flat_spaces import unflatten


class ActorCriticModule(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc, unused-ignore]
    """Actor-critic on observations of `envs.FlatVectorEnv`; masked actions have no probability.

    RLlib's own distributions sample multi-discrete and continuous actions from the outputs of the
    network.
    """

    def setup(self) -> None:
        model: Any = self.model_config
        self.env: EnvSpec = model["env"]
        self.network = ActorCritic(self.env, model["network"])
        if "inputs" in model:
            self.network.inputs.load_state_dict(model["inputs"])
        if len(self.env.action_nvec) > 1:
            # Its annotations declare an instance where RLlib uses the class.
            multi_categorical: Any = TorchMultiCategorical
            self.action_dist_cls = multi_categorical.get_partial_dist_cls(input_lens=[*self.env.action_nvec])

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        rows = batch[Columns.OBS]
        logits = self.network.logits(unflatten(rows, self.env))
        if self.network.log_std is not None:
            logits = torch.cat([logits, self.network.log_std.expand_as(logits)], dim=-1)
        elif self.env.has_mask:
            mask = rows[:, -self.env.num_logits :] > 0.5
            logits = torch.where(mask, logits, FORBIDDEN_LOGIT)
        return {Columns.ACTION_DIST_INPUTS: logits}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """(rows,) value estimates, in units of the reward."""
        return self.network.value(unflatten(batch[Columns.OBS], self.env))
