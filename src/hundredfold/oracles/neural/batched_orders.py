"""Exact reachability in tensors: whether some order of dropoffs keeps every promise after a move.

Earliest times over subsets of dropoffs, as in `moves.py`; C is the number of moves to be tested.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

NEVER_THERE: Final = 2**61


def all_in_time(
    travel: Tensor,
    early: Tensor,
    late: Tensor,
    max_ride: Tensor,
    aboard: Tensor,
    due: Tensor,
    stop: Tensor,
    there: Tensor,
    home_by: Tensor,
) -> Tensor:
    """(C,) whether everybody on board still arrives in time, and the vehicle home.

    Each move has its own book: `travel` (C, stops, stops), `early`, `late`, `max_ride` (C, stops);
    `aboard` and `due` (C, places) are who sits in the vehicle; the move leads to `stop` (C,).
    """
    move = torch.arange(len(stop), device=stop.device)
    is_pickup = stop % 2 == 1
    own = torch.where(is_pickup, stop + 1, 0)
    own_due = torch.minimum(late[move, own], there + max_ride[move, stop])
    others = torch.where(aboard == stop[:, None], 0, aboard)
    left = torch.cat([others, own[:, None]], dim=1)
    left_due = torch.cat([due, own_due[:, None]], dim=1)
    # Whoever is to be reached first, free places behind; then only as wide as needed.
    order = (left == 0).to(torch.int8).argsort(dim=1, stable=True)
    count = (left > 0).sum(dim=1)
    width = int(count.max()) if len(count) else 0
    if width == 0:
        return there + travel[move, stop, 0] <= home_by
    left = left.gather(1, order)[:, :width]
    left_due = left_due.gather(1, order)[:, :width]
    return _some_order(travel, early, left, left_due, count, stop, there, home_by)


def _some_order(
    travel: Tensor,
    early: Tensor,
    left: Tensor,
    left_due: Tensor,
    count: Tensor,
    stop: Tensor,
    there: Tensor,
    home_by: Tensor,
) -> Tensor:
    width = left.shape[1]
    move = torch.arange(len(stop), device=stop.device)[:, None]
    opens = early[move, left]
    legs = travel[move[:, :, None], left[:, :, None], left[:, None, :]]
    homewards = travel[move, left, torch.zeros_like(left)]
    reached = torch.full((len(stop), 1 << width, width), NEVER_THERE, device=stop.device)
    first = torch.maximum(there[:, None] + travel[move, stop[:, None], left], opens)
    for k in range(width):
        reached[:, 1 << k, k] = torch.where(first[:, k] <= left_due[:, k], first[:, k], NEVER_THERE)
    for subset in range(1, 1 << width):
        for k in range(width):
            if subset >> k & 1:
                continue
            arrive = (reached[:, subset] + legs[:, :, k]).amin(dim=1)
            arrive = torch.maximum(arrive, opens[:, k])
            arrive = torch.where(arrive <= left_due[:, k], arrive, NEVER_THERE)
            bigger = subset | 1 << k
            reached[:, bigger, k] = torch.minimum(reached[:, bigger, k], arrive)
    whole = (1 << count) - 1
    at_end = reached[move[:, 0], whole]
    back = (at_end + homewards).amin(dim=1)
    alone = there + travel[move[:, 0], stop, 0]
    return torch.where(count > 0, back, alone) <= home_by
