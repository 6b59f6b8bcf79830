"""Attention model for pickup and delivery: encoder, and the logits of one decoding step.

Follows Kool et al. (2019): a transformer encoder embeds the stops once; each decoding step forms a
query from its context, takes one attention glimpse at the feasible actions, and scores them against
logit keys (the pointer). What a stop contributes to keys, values, logit keys and context is
projected once into a `DecoderCache`, so a step needs no matrix product over stops. Added here:
attention biases from edge features (as in Graphormer, Ying et al. 2021), an MLP over features of
each action, and layer norm instead of batch norm, so an instance of one request is encoded by the
same statistics as a full day.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hundredfold.core.bounds import AtLeastOne, check_bounds
from hundredfold.core.errors import CheckpointError, SettingsError
from hundredfold.core.files import replace_file
from hundredfold.routing.neural.features import NUM_EDGE_FEATURES, NUM_NODE_FEATURES, EncoderInputs, edge_features

NUM_ACTION_FEATURES: Final = 16
NUM_STEP_FEATURES: Final = 8
EDGE_HIDDEN_DIM: Final = 16
MASKED_LOGIT: Final = -1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Network size of the routing policy."""

    embed_dim: AtLeastOne = 128
    """Embedding dimension of a stop."""
    num_heads: AtLeastOne = 8
    """Attention heads, in the encoder and in the decoder's glimpse."""
    num_encoder_layers: AtLeastOne = 2
    """Transformer layers of the encoder."""
    feedforward_dim: AtLeastOne = 256
    """Hidden units of the feed-forward part of an encoder layer."""
    action_hidden_dim: AtLeastOne = 32
    """Hidden units of the MLP that scores an action from its features."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.embed_dim % self.num_heads:
            raise SettingsError(
                f"embed_dim must be a multiple of num_heads, got {self.embed_dim} and {self.num_heads}."
            )


class DecoderCache(NamedTuple):
    """Projected embeddings of a batch of instances of one size, constant while decoding."""

    stops: Tensor  # (instances, stops, sum of RoutingPolicy.cache_widths)
    graph: Tensor  # (instances, embed_dim) query contribution of the graph embedding


class DecodingSteps(NamedTuple):
    """Decoding steps whose logits are computed in one pass (teacher forcing)."""

    current_stop: Tensor  # (instances, steps) where the vehicle is
    step_features: Tensor  # (instances, steps, step features)
    onboard: Tensor  # (instances, steps, stops) averaging weights of dropoffs of riders on board
    pending: Tensor  # (instances, steps, stops) averaging weights of pickups not yet served
    action_mask: Tensor  # (instances, steps, stops) bool, True = feasible
    action_index: Tensor  # (actions,) flat index into (instances, steps, stops), ascending
    action_features: Tensor  # (actions, action features)


class EncoderLayer(nn.Module):
    """Pre-norm transformer encoder layer (Xiong et al. 2020) with a bias on attention logits."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__()
        dim, hidden = settings.embed_dim, settings.feedforward_dim
        self.num_heads = settings.num_heads
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attention_out = nn.Linear(dim, dim)
        self.feedforward_norm = nn.LayerNorm(dim)
        self.feedforward_in = nn.Linear(dim, hidden)
        self.feedforward_out = nn.Linear(hidden, dim)

    def forward(self, stops: Tensor, attention_bias: Tensor) -> Tensor:
        """Update embeddings.

        Args:
            stops: (instances, stops, embed_dim) embeddings.
            attention_bias: (instances, heads, stops, stops), added to the attention logits.
        """
        batch, num_stops, dim = stops.shape
        qkv = self.qkv(self.attention_norm(stops))
        query, key, value = qkv.view(batch, num_stops, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_bias)
        stops = stops + self.attention_out(attended.transpose(1, 2).reshape(batch, num_stops, dim))
        hidden = F.relu(self.feedforward_in(self.feedforward_norm(stops)))
        residual: Tensor = self.feedforward_out(hidden)
        return stops + residual


class RoutingPolicy(nn.Module):
    """Encoder and decoder of the attention model."""

    def __init__(self, settings: PolicySettings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or PolicySettings()
        dim, action_dim = settings.embed_dim, settings.action_hidden_dim
        self.node_embedding = nn.Linear(NUM_NODE_FEATURES, dim)
        self.edge_hidden = nn.Linear(NUM_EDGE_FEATURES, EDGE_HIDDEN_DIM)
        self.edge_bias = nn.Linear(EDGE_HIDDEN_DIM, settings.num_heads)
        self.encoder_layers = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.num_encoder_layers))
        self.encoder_norm = nn.LayerNorm(dim)
        self.cache_projection = nn.Linear(dim, 6 * dim + action_dim, bias=False)
        self.graph_context = nn.Linear(dim, dim)
        self.step_context = nn.Linear(NUM_STEP_FEATURES, dim, bias=False)
        self.query_residual = nn.Linear(dim, dim)
        self.action_hidden = nn.Linear(NUM_ACTION_FEATURES, action_dim)
        self.action_glimpse = nn.Linear(dim, action_dim, bias=False)
        self.action_score = nn.Linear(action_dim, 1, bias=False)

    @property
    def cache_widths(self) -> list[int]:
        """Widths of a stop's cached projections.

        In order: key, value, logit key; query contribution as current stop, as dropoff of a rider
        on board, as pending pickup; input of the action MLP.
        """
        return [self.settings.embed_dim] * 6 + [self.settings.action_hidden_dim]

    def encode(self, inputs: EncoderInputs, drive: Tensor) -> DecoderCache:
        """Embed instances of one size; `drive` (cells, cells) in mean drives."""
        attention_bias = self._attention_bias(edge_features(inputs, drive))
        stops = self.node_embedding(inputs.nodes)
        for layer in self.encoder_layers:
            stops = layer(stops, attention_bias)
        stops = self.encoder_norm(stops)
        return DecoderCache(self.cache_projection(stops), self.graph_context(stops.mean(dim=1)))

    def logits(self, cache: DecoderCache, steps: DecodingSteps) -> Tensor:
        """(instances, steps, stops) action logits, MASKED_LOGIT where infeasible.

        `decoder.score_actions` computes the same for one step on a CPU.
        """
        key, value, logit_key, current, onboard, pending, action = torch.split(cache.stops, self.cache_widths, dim=2)
        batch, num_steps, num_stops = steps.action_mask.shape
        dim = self.settings.embed_dim
        current_index = steps.current_stop[..., None].expand(-1, -1, dim)
        query = (
            current.gather(1, current_index)
            + cache.graph[:, None]
            + self.step_context(steps.step_features)
            + steps.onboard @ onboard
            + steps.pending @ pending
        )
        query = query + self.query_residual(F.relu(query))
        glimpse = F.scaled_dot_product_attention(
            self._split_heads(query),
            self._split_heads(key),
            self._split_heads(value),
            attn_mask=steps.action_mask[:, None],
        )
        glimpse = glimpse.transpose(1, 2).reshape(batch, num_steps, dim)
        pointer = glimpse @ logit_key.transpose(1, 2) / math.sqrt(dim)
        step = steps.action_index // num_stops
        instance = step // num_steps
        stop = steps.action_index % num_stops
        hidden = (
            self.action_hidden(steps.action_features)
            + self.action_glimpse(glimpse).reshape(batch * num_steps, -1)[step]
            + action.reshape(batch * num_stops, -1)[instance * num_stops + stop]
        )
        action_score = self.action_score(F.relu(hidden)).squeeze(-1)
        total = pointer.reshape(-1)[steps.action_index] + action_score
        masked = torch.full_like(pointer, MASKED_LOGIT).reshape(-1)
        return masked.index_copy(0, steps.action_index, total).view_as(pointer)

    def _attention_bias(self, edges: Tensor) -> Tensor:
        """(instances, heads, stops, stops) from (instances, edge features, stops, stops).

        The feature axis stays in front of the stops, the layout that attention needs.
        """
        batch, _, num_stops, _ = edges.shape
        first, second = self.edge_hidden, self.edge_bias
        hidden = torch.baddbmm(
            first.bias[:, None], first.weight.expand(batch, -1, -1), edges.view(batch, -1, num_stops * num_stops)
        )
        bias = torch.baddbmm(second.bias[:, None], second.weight.expand(batch, -1, -1), F.relu(hidden, inplace=True))
        return bias.view(batch, -1, num_stops, num_stops)

    def _split_heads(self, values: Tensor) -> Tensor:
        batch, num_rows, _ = values.shape
        return values.view(batch, num_rows, self.settings.num_heads, -1).transpose(1, 2)


# --- weights files

SHIPPED: Final = Path(__file__).parent / "shipped" / "city.safetensors"


def save_policy(path: Path, policy: RoutingPolicy, provenance: dict[str, Any]) -> None:
    """Write weights, network size and `provenance` (settings, seed, validation gaps) atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in policy.state_dict().items()}
    metadata = {"policy_settings": json.dumps(asdict(policy.settings)), "provenance": json.dumps(provenance)}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata=metadata)
    replace_file(partial, path)


def load_policy(path: Path | str | None = None) -> RoutingPolicy:
    """Load a policy for inference; without a path, the shipped one."""
    file = SHIPPED if path is None else Path(path)
    if not file.exists():
        raise CheckpointError(
            f"there is no weights file at {file}; train one with: hundredfold train-oracle --save-dir FOLDER"
        )
    return _load_cached(file, file.stat().st_mtime_ns)


def read_provenance(path: Path | str | None = None) -> dict[str, Any]:
    """How a weights file was trained: settings, seed, validation gaps."""
    with safe_open(SHIPPED if path is None else Path(path), "pt") as file:
        provenance: dict[str, Any] = json.loads((file.metadata() or {}).get("provenance", "{}"))
    return provenance


@lru_cache(maxsize=4)
def _load_cached(path: Path, modified_ns: int) -> RoutingPolicy:
    # `modified_ns` only belongs to the cache key: a file that changed is read again.
    try:
        with safe_open(path, "pt") as file:
            settings = PolicySettings(**json.loads((file.metadata() or {})["policy_settings"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # Initial weights are drawn and overwritten; the global generator must not notice.
        with torch.random.fork_rng(devices=[]):
            policy = RoutingPolicy(settings)
        policy.load_state_dict(tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is not a routing policy's weights file ({error}); "
            "pass a .safetensors file written by hundredfold train-oracle."
        ) from error
    for layer in policy.modules():
        if isinstance(layer, nn.Linear):
            # Column-major weights: products of these shapes take a quarter less time on a CPU.
            layer.weight.data = layer.weight.data.t().contiguous().t()
    return policy.eval().requires_grad_(False)
