"""The training of a routing policy: a folder with weights, optimiser and curve, resumable.

Everything random in update u is drawn from the stream of (seed, u), so a run that was interrupted
goes on exactly as if it had not been.

Held-out books: how far above a searched plan the policy's plans are, by book size.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hundredfold.core import rng
from hundredfold.core.errors import CheckpointError, TrainingError
from hundredfold.core.rng import Keys
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.neural.losses import imitation_loss, practice_loss
from hundredfold.routing.neural.model import PolicySettings, RoutingPolicy
from hundredfold.routing.neural.oracle import NeuralOracle, NeuralSettings
from hundredfold.routing.neural.training_settings import TrainingSettings
from hundredfold.routing.neural.weights import save_policy
from hundredfold.routing.problem import RouteProblems

Draw = Callable[[Keys, int, int], RouteProblems]

# What plans are compared with: search from nothing with this many rounds.
REFERENCE: Final = LNSSettings(lns_iterations=100, final_restarts=1)
# Held-out books hang under a branch of their own.
HELD_OUT_BRANCH: Final = 0x68656C64


class HeldOut:
    """Books that training never sees, with their reference prices."""

    def __init__(self, draw: Draw, sizes: Sequence[int], num_books: int, seed: int) -> None:
        root = rng.spawn(rng.seed_key(seed), HELD_OUT_BRANCH)
        self.books = {size: draw(rng.spawn(root, size), num_books, size) for size in sizes}
        reference = LNSOracle(REFERENCE)
        self.reference = {size: reference.solve(books).cost for size, books in self.books.items()}

    def gaps(self, policy: RoutingPolicy, settings: NeuralSettings) -> dict[int, float]:
        """Percent above the reference by size, of the mean price; inf where somebody waits."""
        oracle = NeuralOracle(settings, policy)
        return {
            size: float(100.0 * (oracle.solve(books).cost.sum() / self.reference[size].sum() - 1))
            for size, books in self.books.items()
        }


def looked_at(max_requests: int) -> tuple[int, ...]:
    """Sizes worth a look: a few between one request and a whole day."""
    shares = (0.0, 0.15, 0.35, 0.65, 1.0)
    return tuple(sorted({max(1, round(share * max_requests)) for share in shares}))


def greedy_and_finished(
    held_out: HeldOut, policy: RoutingPolicy, settings: NeuralSettings | None = None
) -> dict[str, dict[int, float]]:
    """Gaps of the bare greedy plan, and after two relocate passes."""
    base = settings or NeuralSettings()
    return {
        "greedy": held_out.gaps(policy, replace(base, improve_passes=0)),
        "relocated": held_out.gaps(policy, replace(base, improve_passes=2)),
    }


Row = dict[str, Any]
Say = Callable[[Row], None]

UPDATES_BRANCH, BOOKS_CHILD, LESSON_CHILD, SIZE_CHILD, WEIGHTS_CHILD = range(5)
WARM_UPDATES: Final = 100
LEAST_RATE: Final = 0.03
# Half of all updates see nearly full days, where there is most to learn; the others any size.
LARGE_SHARE, LARGE_FROM = 0.6, 0.7
LATEST, BEST, CURVE = "latest.safetensors", "best.safetensors", "curve.jsonl"
GIVE_UP_AFTER: Final = 20  # updates in a row without a finite gradient


def _nothing(*told: Any) -> None:
    """Nobody listens."""


class OracleTraining:
    """One training; `folder` holds everything that is needed to go on."""

    def __init__(
        self,
        folder: Path,
        draw: Draw,
        held_out_draw: Draw,
        max_requests: int,
        settings: TrainingSettings,
        size: PolicySettings | None = None,
        facts: dict[str, Any] | None = None,
        start: RoutingPolicy | None = None,
    ) -> None:
        self.folder, self.draw = folder, draw
        self.max_requests, self.settings = max_requests, settings
        self.facts = {**(facts or {}), "training": asdict(settings), "max_requests": max_requests}
        self.key = rng.spawn(rng.seed_key(settings.seed), UPDATES_BRANCH)
        seed = int(rng.integers(rng.spawn(self.key, WEIGHTS_CHILD), 0, 2**53))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = RoutingPolicy(start.size if start else size)
        if start is not None:
            self.policy.load_state_dict(start.state_dict())
        self.optimiser = torch.optim.Adam(self.policy.parameters(), lr=settings.learning_rate)
        self.update = 0
        self.best_gap = math.inf
        self.skipped = 0
        self.seconds = 0.0
        self.held_out = HeldOut(
            held_out_draw, looked_at(max_requests), settings.validation_books, settings.seed
        )
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / LATEST).exists():
            self._restore()

    def run(self, say: Say = _nothing, after_update: Callable[[], None] = _nothing) -> None:
        """Train to the end; `say` hears a row after every validation, when all is saved.

        `after_update` may raise to stop the training; `save` then keeps what was learned.
        """
        told: list[dict[str, float]] = []
        while self.update < self.settings.num_updates:
            began = time.perf_counter()
            told.append(self._learn_once())
            self.update += 1
            self.seconds += time.perf_counter() - began
            last = self.update == self.settings.num_updates
            if last or self.update % self.settings.validate_every == 0:
                say(self._look(told))
                told = []
            after_update()

    def curve(self) -> list[Row]:
        """Every row told so far."""
        lines = (self.folder / CURVE).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def practising(self) -> bool:
        """Whether imitation is over."""
        return self.update >= self.settings.imitation_updates

    def _learn_once(self) -> dict[str, float]:
        settings = self.settings
        key = rng.spawn(self.key, 100 + self.update)
        count = settings.practice_books if self.practising else settings.imitation_books
        problems = self.draw(rng.spawn(key, BOOKS_CHILD), count, self._size(key))
        lesson = practice_loss if self.practising else imitation_loss
        self.policy.train()
        loss, told = lesson(self.policy, problems, rng.spawn(key, LESSON_CHILD), settings)
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), settings.max_gradient)
        if torch.isfinite(norm):
            self.optimiser.step()
            self.skipped = 0
        else:
            self.skipped += 1
            if self.skipped >= GIVE_UP_AFTER:
                raise TrainingError(
                    f"{self.skipped} updates in a row had no finite gradient; "
                    "lower the learning rates."
                )
        return told

    def _size(self, key: Keys) -> int:
        luck = rng.uniforms(rng.spawn(key, SIZE_CHILD), np.arange(2))
        least = max(1, round(LARGE_FROM * self.max_requests)) if luck[0] < LARGE_SHARE else 1
        return least + int(luck[1] * (self.max_requests - least + 1))

    def _rate(self) -> float:
        """Up from nothing, then down along half a cosine; once for each kind of lesson."""
        settings = self.settings
        if self.practising:
            done = self.update - settings.imitation_updates
            total, peak = settings.practice_updates, settings.practice_learning_rate
        else:
            done, total, peak = self.update, settings.imitation_updates, settings.learning_rate
        falling = 0.5 * (1.0 + math.cos(math.pi * done / max(1, total)))
        rising = min(1.0, (done + 1) / WARM_UPDATES)
        return peak * rising * (LEAST_RATE + (1.0 - LEAST_RATE) * falling)

    def _look(self, told: list[dict[str, float]]) -> Row:
        """Measure on held-out books, write the curve and the checkpoint."""
        self.policy.eval()
        gaps = greedy_and_finished(self.held_out, self.policy)
        names = sorted({name for each in told for name in each})
        row: Row = {
            "update": self.update,
            "lesson": "practice" if self.update > self.settings.imitation_updates else "imitation",
            "seconds": round(self.seconds, 1),
            **{
                name: float(np.mean([each[name] for each in told if name in each]))
                for name in names
            },
            "greedy_gap_pct": {str(size): gap for size, gap in gaps["greedy"].items()},
            "relocated_gap_pct": {str(size): gap for size, gap in gaps["relocated"].items()},
        }
        # All sizes count: an episode asks for prices of one booking as often as of thirty.
        judged = float(np.mean([list(by_size.values()) for by_size in gaps.values()]))
        if judged < self.best_gap:
            self.best_gap = judged
            save_policy(self.folder / BEST, self.policy, {**self.facts, "held_out": row})
        with (self.folder / CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.save()
        return row

    def save(self) -> None:
        """Write everything that is needed to go on from here."""
        tensors = {f"policy.{name}": t for name, t in self.policy.state_dict().items()}
        for number, state in self.optimiser.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"optimiser.{number}.{name}"] = torch.as_tensor(value)
        counters = {
            "update": self.update,
            "best_gap": self.best_gap,
            "skipped": self.skipped,
            "seconds": self.seconds,
            "settings": asdict(self.settings),
            "size": asdict(self.policy.size),
        }
        partial = self.folder / "latest.partial"
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            partial,
            metadata={"counters": json.dumps(counters)},
        )
        partial.replace(self.folder / LATEST)

    def _restore(self) -> None:
        with safe_open(self.folder / LATEST, "pt") as file:
            counters = json.loads((file.metadata() or {}).get("counters", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if counters.get("size") != asdict(self.policy.size):
            raise CheckpointError(
                f"{self.folder} holds a training of another size ({counters.get('size')}); "
                "name another folder, or the same size."
            )
        kept = counters["settings"] | {"practice_updates": self.settings.practice_updates}
        if kept != asdict(self.settings):
            raise CheckpointError(
                f"{self.folder} was trained with other settings ({counters['settings']}); "
                "repeat them to go on (only practice_updates may grow), or name another folder."
            )
        self.policy.load_state_dict(
            {n.removeprefix("policy."): t for n, t in tensors.items() if n.startswith("policy.")}
        )
        state: dict[int, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimiser."):
                _, number, field = name.split(".")
                state.setdefault(int(number), {})[field] = tensor
        whole = self.optimiser.state_dict()
        whole["state"] = state
        self.optimiser.load_state_dict(whole)
        self.update = int(counters["update"])
        self.best_gap = float(counters["best_gap"])
        self.skipped = int(counters["skipped"])
        self.seconds = float(counters["seconds"])
