"""The two losses of the routing policy: imitation of searched plans, and its own practice."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.core import streams
from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.streams import Words
from hundredfold.oracles.insertion import InsertionOracle, InsertionSettings
from hundredfold.oracles.neural.decode import decode_rows, decoder_weights
from hundredfold.oracles.neural.features import StopTable, stop_table
from hundredfold.oracles.neural.model import RoutingPolicy, Tables
from hundredfold.oracles.neural.prepared import Prepared, finish_plans, prepared
from hundredfold.oracles.neural.training.replay import Told, in_order_of_leaving, told_again
from hundredfold.oracles.neural.training.settings import TrainingSettings
from hundredfold.oracles.problem import RouteProblems
from hundredfold.oracles.ticks import TICKS_PER_MINUTE

TURN_CHILD, SAMPLE_CHILD, FINISH_CHILD = range(3)
FINISHING_PASSES: Final = 2
# How far sampled plans of a full day lie apart, as a share of their price. A constant: dividing by
# the spread of each batch would blow up the luck of small books, whose plans hardly differ.
USUAL_SPREAD: Final = 0.02


def imitation_loss(
    policy: RoutingPolicy, problems: RouteProblems, key: Words, settings: TrainingSettings
) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy of a searched plan's moves, on books of one size."""
    teacher = InsertionOracle(
        InsertionSettings(lns_iterations=settings.teacher_rounds, final_restarts=1)
    )
    plans = teacher.solve(problems)
    ready = prepared(problems)
    in_order_of_leaving(ready.books, plans.routes, plans.lengths)
    rows = np.arange(len(problems))
    told = told_again(
        ready.books, ready.rules, ready.pace, rows, plans.routes[None], plans.lengths[None]
    )
    tables = policy.encode(turned_table(ready, rows, key), ready.drive)
    real, logits = _real_decisions(policy, tables, told)
    if not len(logits):
        return tables.stops.sum() * 0.0, {"loss": 0.0, "agreement": 1.0}
    chosen = told.chosen[real]
    loss = F.cross_entropy(logits, chosen)
    agreement = (logits.argmax(dim=1) == chosen).float().mean()
    return loss, {"loss": float(loss.detach()), "agreement": float(agreement)}


def practice_loss(
    policy: RoutingPolicy, problems: RouteProblems, key: Words, settings: TrainingSettings
) -> tuple[Tensor, dict[str, float]]:
    """REINFORCE: moves of plans that turned out cheaper than their baseline become likelier."""
    ready = prepared(problems)
    rows = np.arange(len(problems))
    table = turned_table(ready, rows, key)
    tables = policy.encode(table, ready.drive)
    greedy = settings.baseline == "greedy"
    num_plans = settings.practice_samples + greedy
    sample_keys = streams.spawn(
        streams.spawn(key, SAMPLE_CHILD), np.arange(num_plans * len(rows))
    ).reshape(num_plans, len(rows))
    routes, lengths = sampled_routes(policy, ready, tables, rows, sample_keys, greedy)
    told = told_again(ready.books, ready.rules, ready.pace, rows, routes, lengths)
    minutes = _prices(ready, routes, lengths, key, settings.finished_share)
    baseline = minutes[:1] if greedy else minutes.mean(axis=0, keepdims=True)
    advantage = (baseline - minutes) / np.maximum(minutes.mean(axis=0, keepdims=True), 1.0)
    weight = torch.from_numpy((advantage / USUAL_SPREAD).astype(np.float32))

    real, logits = _real_decisions(policy, tables, told)
    if not len(logits):
        return tables.stops.sum() * 0.0, {"loss": 0.0, "minutes": float(minutes.mean())}
    likely = -F.cross_entropy(logits, told.chosen[real], reduction="none")
    # (books, decisions): every decision counts by the plan it belongs to.
    per_decision = weight.T.repeat_interleave(told.width, dim=1)[real]
    loss = -(likely * per_decision).sum() / num_plans / len(rows)
    return loss, {
        "loss": float(loss.detach()),
        "minutes": float(minutes.mean()),
        "spread_pct": 100.0 * float(advantage.std()),
    }


def sampled_routes(
    policy: RoutingPolicy,
    ready: Prepared,
    tables: Tables,
    rows: IntArray,
    keys: Words,
    first_greedy: bool,
) -> tuple[IntArray, IntArray]:
    """Plans drawn from the policy as it is: (plans, books, vehicles, width) and their lengths."""
    books, rules = ready.books, ready.rules
    shape = (*keys.shape, rules.num_vehicles)
    routes = np.zeros((*shape, books.cell.shape[1] - 1), np.int64)
    lengths = np.zeros(shape, np.int64)
    weights = decoder_weights(policy)
    stops, book = tables.stops.detach().numpy(), tables.book.detach().numpy()
    first = 0.0 if first_greedy else 1.0
    for plans, temperature in ((slice(0, 1), first), (slice(1, None), 1.0)):
        decode_rows(
            books,
            rules,
            ready.pace,
            weights,
            rows,
            stops,
            book,
            keys[plans],
            temperature,
            routes[plans],
            lengths[plans],
            threads=1,
        )
    return routes, lengths


def turned_table(ready: Prepared, rows: IntArray, key: Words) -> StopTable:
    """What the encoder sees, with the map turned and mirrored at random: north means nothing."""
    luck = streams.uniforms(streams.spawn(key, TURN_CHILD), np.arange(2))
    angle = 2.0 * np.pi * luck[0]
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    if luck[1] < 0.5:
        turn[:, 0] *= -1.0
    return stop_table(ready.books, ready.rules, ready.city, rows, turn)


def _real_decisions(policy: RoutingPolicy, tables: Tables, told: Told) -> tuple[Tensor, Tensor]:
    """Which decisions are not padding, and their logits (decisions, stops)."""
    real = (torch.arange(told.width) < told.counts[:, :, None]).flatten(1)
    return real, policy.scores(tables, told.decisions)[real]


def _prices(
    ready: Prepared, routes: IntArray, lengths: IntArray, key: Words, finished_share: float
) -> FloatArray:
    """(plans, books) minutes: before and after relocation, weighed. Plans are finished in place."""
    keys = streams.spawn(streams.spawn(key, FINISH_CHILD), np.arange(routes.shape[1]))
    found = np.zeros(routes.shape[:2])
    for plan in range(len(routes)):
        before = finish_plans(ready, keys, routes[plan], lengths[plan], 0)
        after = finish_plans(ready, keys, routes[plan], lengths[plan], FINISHING_PASSES)
        found[plan] = (1.0 - finished_share) * before + finished_share * after
    # A plan that leaves somebody out is twice as bad as the best one, not a million times.
    return np.asarray(np.minimum(found, 2.0 * found.min(axis=0)) / TICKS_PER_MINUTE)
