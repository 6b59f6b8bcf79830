"""Books made ready for the policy: in ticks, with the scales of their city, and plans finished."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hundredfold.core.batch import IntArray
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.lns import REGRET_ORDER, LNSParams, improve_batch
from hundredfold.routing.neural.features import City, city_of
from hundredfold.routing.neural.transitions import Pace, pace_of
from hundredfold.routing.problem import UNLIMITED, RouteProblems, TravelTable


class Prepared(NamedTuple):
    """A batch of books with everything that decoding asks for."""

    books: InstanceArrays
    rules: FleetConstraints
    city: City
    pace: Pace
    drive: Tensor  # (cells, cells) in mean drives


def prepared(problems: RouteProblems) -> Prepared:
    """These books, ready to be encoded and decoded."""
    books, rules = to_instance_arrays(problems)
    return prepared_books(problems.travel, books, rules)


def prepared_books(travel: TravelTable, books: InstanceArrays, rules: FleetConstraints) -> Prepared:
    """The same for books that are in ticks already."""
    early, late = int(books.early[0, 0]), int(books.late[0, 0])
    city, drive = _city(travel, early, late)
    pace = pace_of(city.mean_drive, city.day_start, city.day_length)
    return Prepared(books, rules, city, pace, drive)


@lru_cache(maxsize=16)
def _city(travel: TravelTable, early: int, late: int) -> tuple[City, Tensor]:
    city = city_of(travel, early, late)
    return city, torch.from_numpy((travel.microseconds / city.mean_drive).astype(np.float32))


def rows_by_size(num_requests: IntArray) -> list[IntArray]:
    """The rows of every size that occurs, empty books left out."""
    return [np.flatnonzero(num_requests == size) for size in np.unique(num_requests) if size > 0]


def finish_plans(
    ready: Prepared,
    keys: Keys,
    routes: IntArray,
    lengths: IntArray,
    improve_passes: int,
    threads: int = 1,
) -> IntArray:
    """Insert whoever was left out and relocate, in place; returns (books,) objectives in ticks."""
    ticks = np.full(len(keys), UNLIMITED)
    search = LNSParams(improve_passes=improve_passes, iterations=0, max_removed=10)
    rows = np.arange(len(keys))
    improve_batch(
        ready.books, ready.rules, search, REGRET_ORDER, rows, keys, routes, lengths, ticks, threads
    )
    return ticks
