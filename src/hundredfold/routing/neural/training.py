"""Training of the routing policy: imitation, then REINFORCE, in a resumable folder.

Everything random in update u is drawn from the RNG stream of (seed, u), so a resumed training is
bit-exact.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import torch
from annotated_types import Ge
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hundredfold.core import rng
from hundredfold.core.bounds import AtLeastOne, Fraction, NonNegativeInt, Positive, check_bounds
from hundredfold.core.errors import CheckpointError, TrainingError
from hundredfold.core.rng import Keys
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.neural.losses import Baseline, imitation_loss, reinforce_loss
from hundredfold.routing.neural.model import PolicySettings, RoutingPolicy, save_policy
from hundredfold.routing.neural.oracle import NeuralOracle, NeuralSettings
from hundredfold.routing.problem import RouteProblems

Row = dict[str, Any]
# (key, num_instances, num_requests) -> instances of that size
SampleInstances = Callable[[Keys, int, int], RouteProblems]

# Reference of the optimality gaps: large neighbourhood search from scratch.
REFERENCE: Final = LNSSettings(lns_iterations=100, final_restarts=1)
VALIDATION_BRANCH: Final = 0x68656C64
UPDATES_BRANCH, INSTANCES_CHILD, LOSS_CHILD, SIZE_CHILD, WEIGHTS_CHILD = range(5)
WARMUP_UPDATES: Final = 100
FINAL_RATE_SHARE: Final = 0.03
# This share of updates draws sizes of at least LARGE_FROM of a full day; the others any size.
LARGE_SHARE, LARGE_FROM = 0.6, 0.7
LATEST, BEST, CURVE = "latest.safetensors", "best.safetensors", "curve.jsonl"
MAX_SKIPPED_UPDATES: Final = 20  # in a row, without a finite gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Settings of imitation and REINFORCE; every update draws new instances of one size."""

    seed: int = 0
    """Seed of instances, initial weights and samples."""
    imitation_updates: NonNegativeInt = 800
    """Gradient updates of imitation learning."""
    reinforce_updates: NonNegativeInt = 1000
    """Gradient updates of REINFORCE, after imitation."""
    imitation_batch_size: AtLeastOne = 64
    """Instances per imitation update."""
    reinforce_batch_size: AtLeastOne = 16
    """Instances per REINFORCE update."""
    reinforce_samples: Annotated[int, Ge(2)] = 16
    """Solutions sampled per instance of REINFORCE."""
    baseline: Baseline = "shared"
    """REINFORCE baseline: mean cost of the instance's samples, or cost of the greedy solution."""
    teacher_iterations: AtLeastOne = 100
    """Iterations of large neighbourhood search behind a solution to imitate."""
    imitation_learning_rate: Positive = 8e-4
    """Peak learning rate of imitation: linear warm-up, then cosine decay."""
    reinforce_learning_rate: Positive = 1e-4
    """Peak learning rate of REINFORCE, with the same schedule."""
    improved_cost_weight: Fraction = 0.3
    """Weight of the cost after local search in REINFORCE; the rest is before."""
    max_gradient_norm: Positive = 1.0
    """Gradient clipping norm."""
    validation_interval: AtLeastOne = 100
    """Updates between two validations; checkpoints are written then."""
    validation_instances: AtLeastOne = 100
    """Validation instances of each size."""

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def num_updates(self) -> int:
        """Updates of both phases."""
        return self.imitation_updates + self.reinforce_updates


class ValidationSet:
    """Held-out instances with reference costs, by size."""

    def __init__(self, sample: SampleInstances, sizes: Sequence[int], num_instances: int, seed: int) -> None:
        root = rng.spawn(rng.seed_key(seed), VALIDATION_BRANCH)
        self.instances = {size: sample(rng.spawn(root, size), num_instances, size) for size in sizes}
        reference = LNSOracle(REFERENCE)
        self.reference = {size: reference.solve(problems).cost for size, problems in self.instances.items()}

    def gaps(self, policy: RoutingPolicy, improve_passes: int) -> dict[str, float]:
        """Percent of the mean cost above the reference, by size; inf with unserved requests."""
        oracle = NeuralOracle(NeuralSettings(improve_passes=improve_passes), policy)
        return {
            str(size): float(100.0 * (oracle.solve(problems).cost.sum() / self.reference[size].sum() - 1))
            for size, problems in self.instances.items()
        }


def validation_sizes(max_requests: int) -> tuple[int, ...]:
    """Numbers of requests to validate on, from one to a full day."""
    shares = (0.0, 0.15, 0.35, 0.65, 1.0)
    return tuple(sorted({max(1, round(share * max_requests)) for share in shares}))


def _ignore(*_: Any) -> None:
    """Callback that does nothing."""


class OracleTraining:
    """Trainer of a routing policy, resumed when `folder` already holds a training."""

    def __init__(
        self,
        folder: Path,
        sample: SampleInstances,
        validation_sample: SampleInstances,
        max_requests: int,
        settings: TrainingSettings,
        policy_settings: PolicySettings | None = None,
        provenance: dict[str, Any] | None = None,
        initial_policy: RoutingPolicy | None = None,
    ) -> None:
        """Create or resume a training.

        Args:
            folder: Holds weights, optimizer state and learning curve.
            sample: Draws training instances.
            validation_sample: Draws validation instances.
            max_requests: Requests of a full day, the largest size.
            settings: Training settings; a resumed training needs the same ones.
            policy_settings: Network size.
            provenance: More facts to record in the weights file.
            initial_policy: Policy to start from instead of random weights.
        """
        self.folder, self.sample = folder, sample
        self.max_requests, self.settings = max_requests, settings
        self.provenance = {**(provenance or {}), "training": asdict(settings), "max_requests": max_requests}
        self.key = rng.spawn(rng.seed_key(settings.seed), UPDATES_BRANCH)
        seed = int(rng.integers(rng.spawn(self.key, WEIGHTS_CHILD), 0, 2**53))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = RoutingPolicy(initial_policy.settings if initial_policy else policy_settings)
        if initial_policy is not None:
            self.policy.load_state_dict(initial_policy.state_dict())
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=settings.imitation_learning_rate)
        self.update = 0
        self.best_gap = math.inf
        self.skipped_updates = 0
        self.seconds = 0.0
        self.validation = ValidationSet(
            validation_sample, validation_sizes(max_requests), settings.validation_instances, settings.seed
        )
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / LATEST).exists():
            self._restore()

    def run(self, on_validation: Callable[[Row], None] = _ignore, on_update: Callable[[], None] = _ignore) -> None:
        """Train to the end.

        Args:
            on_validation: Receives the learning curve's new row, after everything is saved.
            on_update: Called after every update; may raise to stop, before a call of `save`.
        """
        metrics: list[dict[str, float]] = []
        while self.update < self.settings.num_updates:
            start = time.perf_counter()
            metrics.append(self._train_step())
            self.update += 1
            self.seconds += time.perf_counter() - start
            is_last = self.update == self.settings.num_updates
            if is_last or self.update % self.settings.validation_interval == 0:
                on_validation(self._validate(metrics))
                metrics = []
            on_update()

    def learning_curve(self) -> list[Row]:
        """One row per validation so far."""
        lines = (self.folder / CURVE).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def is_reinforce(self) -> bool:
        """Whether the next update is REINFORCE."""
        return self.update >= self.settings.imitation_updates

    def _train_step(self) -> dict[str, float]:
        """Loss of new instances, backward pass, clipped gradient step."""
        self.policy.train()
        loss, metrics = self._loss()
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.max_gradient_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
            self.skipped_updates = 0
            return metrics
        self.skipped_updates += 1
        if self.skipped_updates >= MAX_SKIPPED_UPDATES:
            raise TrainingError(
                f"the gradient was not finite in {self.skipped_updates} updates in a row; lower the learning rates."
            )
        return metrics

    def _loss(self) -> tuple[Tensor, dict[str, float]]:
        settings = self.settings
        key = rng.spawn(self.key, 100 + self.update)
        instances_key, loss_key = rng.spawn(key, INSTANCES_CHILD), rng.spawn(key, LOSS_CHILD)
        size = self._sample_size(key)
        if not self.is_reinforce:
            problems = self.sample(instances_key, settings.imitation_batch_size, size)
            return imitation_loss(self.policy, problems, loss_key, settings.teacher_iterations)
        problems = self.sample(instances_key, settings.reinforce_batch_size, size)
        return reinforce_loss(
            self.policy,
            problems,
            loss_key,
            settings.reinforce_samples,
            settings.baseline,
            settings.improved_cost_weight,
        )

    def _sample_size(self, key: Keys) -> int:
        uniforms = rng.uniforms(rng.spawn(key, SIZE_CHILD), np.arange(2))
        is_large = uniforms[0] < LARGE_SHARE
        least = max(1, round(LARGE_FROM * self.max_requests)) if is_large else 1
        return least + int(uniforms[1] * (self.max_requests - least + 1))

    def _learning_rate(self) -> float:
        """Linear warm-up and cosine decay, once per phase."""
        settings = self.settings
        if self.is_reinforce:
            done = self.update - settings.imitation_updates
            total, peak = settings.reinforce_updates, settings.reinforce_learning_rate
        else:
            done, total = self.update, settings.imitation_updates
            peak = settings.imitation_learning_rate
        decay = 0.5 * (1.0 + math.cos(math.pi * done / max(1, total)))
        warmup = min(1.0, (done + 1) / WARMUP_UPDATES)
        return peak * warmup * (FINAL_RATE_SHARE + (1.0 - FINAL_RATE_SHARE) * decay)

    def _validate(self, metrics: list[dict[str, float]]) -> Row:
        """Measure gaps on validation instances, write the learning curve and the checkpoint."""
        self.policy.eval()
        greedy = self.validation.gaps(self.policy, improve_passes=0)
        improved = self.validation.gaps(self.policy, improve_passes=2)
        names = sorted({name for row in metrics for name in row})
        was_reinforce = self.update > self.settings.imitation_updates
        row: Row = {
            "update": self.update,
            "phase": "reinforce" if was_reinforce else "imitation",
            "seconds": round(self.seconds, 1),
            **{name: float(np.mean([row[name] for row in metrics if name in row])) for name in names},
            "greedy_gap_pct": greedy,
            "improved_gap_pct": improved,
        }
        # All sizes count equally: an episode needs costs of one request as often as of a full day.
        gap = float(np.mean([list(greedy.values()), list(improved.values())]))
        if gap < self.best_gap:
            self.best_gap = gap
            save_policy(self.folder / BEST, self.policy, {**self.provenance, "validation": row})
        with (self.folder / CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.save()
        return row

    def save(self) -> None:
        """Write the checkpoint that a resumed training continues from, atomically."""
        tensors = {f"policy.{name}": t for name, t in self.policy.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"optimizer.{number}.{name}"] = torch.as_tensor(value)
        counters = {
            "update": self.update,
            "best_gap": self.best_gap,
            "skipped_updates": self.skipped_updates,
            "seconds": self.seconds,
            "settings": asdict(self.settings),
            "policy_settings": asdict(self.policy.settings),
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
        policy_settings = counters.get("policy_settings")
        if policy_settings != asdict(self.policy.settings):
            raise CheckpointError(
                f"{self.folder} holds a policy of another size ({policy_settings}); "
                "pass the same sizes to resume, or another --save-dir."
            )
        saved = counters["settings"] | {"reinforce_updates": self.settings.reinforce_updates}
        if saved != asdict(self.settings):
            raise CheckpointError(
                f"{self.folder} was trained with other settings ({counters['settings']}); pass the "
                "same ones to resume (only reinforce_updates may differ), or another --save-dir."
            )
        self.policy.load_state_dict(
            {n.removeprefix("policy."): t for n, t in tensors.items() if n.startswith("policy.")}
        )
        state: dict[int, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, number, field = name.split(".")
                state.setdefault(int(number), {})[field] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.update = int(counters["update"])
        self.best_gap = float(counters["best_gap"])
        self.skipped_updates = int(counters["skipped_updates"])
        self.seconds = float(counters["seconds"])
