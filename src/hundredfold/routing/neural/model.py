"""The routing policy: an attention encoder over stops, and the arithmetic of one decision.

A book is encoded once into a **table**: for every stop its key, value and logit key, what it
contributes to the query while being the current stop, while its rider is on board and while its
pickup is open, and what it adds to the score of a move to it. Decoding then needs no matrix product
over stops. Layer normalisation looks at one stop at a time, so a book of one request is encoded by
the same statistics as a full day.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hundredfold.core.errors import SettingsError
from hundredfold.routing.neural.features import (
    NUM_NODE_FEATURES,
    NUM_PAIR_FEATURES,
    StopTable,
    pair_features,
)

NUM_MOVE_FEATURES: Final = 16
NUM_STATE_FEATURES: Final = 8
# Stands for "not allowed" among logits.
FORBIDDEN: Final = -1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Size of the routing policy."""

    width: int = 128
    """Numbers per stop inside the encoder."""
    heads: int = 8
    """Attention heads, in the encoder and in the glimpse."""
    layers: int = 2
    """Blocks of the encoder."""
    feed_forward: int = 256
    """Width of the feed-forward part of a block."""
    move_width: int = 32
    """Hidden numbers that score one move from its features."""

    def __post_init__(self) -> None:
        sizes = (self.width, self.heads, self.layers, self.feed_forward, self.move_width)
        if min(sizes) < 1 or self.width % self.heads:
            raise SettingsError(
                f"a routing policy needs sizes of at least 1 and a width that its heads divide; "
                f"got {self}."
            )


class Tables(NamedTuple):
    """An encoded batch of books of one size."""

    stops: Tensor  # (books, stops, table width); see RoutingPolicy.parts
    book: Tensor  # (books, width) the same for every decision


class Decisions(NamedTuple):
    """Recorded decisions, to be scored all at once; `moves` lists the allowed ones of each."""

    current: Tensor  # (books, decisions) stop the vehicle stands at
    state: Tensor  # (books, decisions, state features)
    aboard: Tensor  # (books, decisions, stops) weights of the dropoffs of riders on board
    open: Tensor  # (books, decisions, stops) weights of the pickups nobody has served
    allowed: Tensor  # (books, decisions, stops) bool
    move_place: Tensor  # (moves,) flat index into (books, decisions, stops), ascending
    move_features: Tensor  # (moves, move features)


class Block(nn.Module):
    """Attention with a bias per pair of stops, then feed-forward; both normalised beforehand."""

    def __init__(self, size: PolicySettings) -> None:
        super().__init__()
        self.heads = size.heads
        self.before_attention = nn.LayerNorm(size.width)
        self.query_key_value = nn.Linear(size.width, 3 * size.width)
        self.mix = nn.Linear(size.width, size.width)
        self.before_feed_forward = nn.LayerNorm(size.width)
        self.widen = nn.Linear(size.width, size.feed_forward)
        self.narrow = nn.Linear(size.feed_forward, size.width)

    def forward(self, stops: Tensor, bias: Tensor) -> Tensor:
        """`stops` (books, stops, width), `bias` (books, heads, stops, stops)."""
        books, num, width = stops.shape
        split = self.query_key_value(self.before_attention(stops))
        query, key, value = split.view(books, num, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        stops = stops + self.mix(seen.transpose(1, 2).reshape(books, num, width))
        thought: Tensor = self.narrow(F.relu(self.widen(self.before_feed_forward(stops))))
        return stops + thought


class RoutingPolicy(nn.Module):
    """Encodes books and scores moves."""

    def __init__(self, size: PolicySettings | None = None) -> None:
        super().__init__()
        self.size = size = size or PolicySettings()
        width = size.width
        self.enter = nn.Linear(NUM_NODE_FEATURES, width)
        self.pair_hidden = nn.Linear(NUM_PAIR_FEATURES, 16)
        self.pair_bias = nn.Linear(16, size.heads)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.leave = nn.LayerNorm(width)
        self.table = nn.Linear(width, 6 * width + size.move_width, bias=False)
        self.whole_book = nn.Linear(width, width)
        self.state = nn.Linear(NUM_STATE_FEATURES, width, bias=False)
        self.think = nn.Linear(width, width)
        self.move_features = nn.Linear(NUM_MOVE_FEATURES, size.move_width)
        self.move_glimpse = nn.Linear(width, size.move_width, bias=False)
        self.move_score = nn.Linear(size.move_width, 1, bias=False)

    @property
    def parts(self) -> list[int]:
        """Widths of a table's parts: key, value, logit key, current, aboard, open, move."""
        return [self.size.width] * 6 + [self.size.move_width]

    def encode(self, table: StopTable, drive: Tensor) -> Tables:
        """Tables of books of one size; `drive` (cells, cells) in mean drives."""
        bias = self._pair_bias(pair_features(table, drive))
        stops = self.enter(table.nodes)
        for block in self.blocks:
            stops = block(stops, bias)
        stops = self.leave(stops)
        return Tables(self.table(stops), self.whole_book(stops.mean(dim=1)))

    def scores(self, tables: Tables, made: Decisions) -> Tensor:
        """(books, decisions, stops) logits, FORBIDDEN where not allowed."""
        key, value, logit_key, current, aboard, waiting, move = torch.split(
            tables.stops, self.parts, dim=2
        )
        books, num_decisions, num_stops = made.allowed.shape
        width = self.size.width
        where = made.current[..., None].expand(-1, -1, width)
        query = (
            current.gather(1, where)
            + tables.book[:, None]
            + self.state(made.state)
            + made.aboard @ aboard
            + made.open @ waiting
        )
        query = query + self.think(F.relu(query))
        glimpse = F.scaled_dot_product_attention(
            self._by_head(query),
            self._by_head(key),
            self._by_head(value),
            attn_mask=made.allowed[:, None],
        )
        glimpse = glimpse.transpose(1, 2).reshape(books, num_decisions, width)
        base = glimpse @ logit_key.transpose(1, 2) / math.sqrt(width)
        decision = made.move_place // num_stops
        book = decision // num_decisions
        stop = made.move_place % num_stops
        hidden = (
            self.move_features(made.move_features)
            + self.move_glimpse(glimpse).reshape(books * num_decisions, -1)[decision]
            + move.reshape(books * num_stops, -1)[book * num_stops + stop]
        )
        scored = self.move_score(F.relu(hidden)).squeeze(-1)
        total = base.reshape(-1)[made.move_place] + scored
        spread = torch.full_like(base, FORBIDDEN).reshape(-1)
        return spread.index_copy(0, made.move_place, total).view_as(base)

    def _pair_bias(self, pairs: Tensor) -> Tensor:
        """(books, heads, stops, stops) from (books, pair features, stops, stops).

        Features come first, so that the attention finds its bias where it wants it.
        """
        books, _, num, _ = pairs.shape
        into, out = self.pair_hidden, self.pair_bias
        hidden = torch.baddbmm(
            into.bias[:, None], into.weight.expand(books, -1, -1), pairs.view(books, -1, num * num)
        )
        bias = torch.baddbmm(
            out.bias[:, None], out.weight.expand(books, -1, -1), F.relu(hidden, inplace=True)
        )
        return bias.view(books, -1, num, num)

    def _by_head(self, values: Tensor) -> Tensor:
        books, num, _ = values.shape
        return values.view(books, num, self.size.heads, -1).transpose(1, 2)
