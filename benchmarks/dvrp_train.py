"""Training speed on dvrp: whole epochs with the split of their time, and updates beside bare torch.

The yardstick for an update is a loop that does nothing but the same number of gradient steps, on
networks of the same size, minibatches of the same size and the same losses, with its data laid out
in one tensor beforehand. What an update takes beyond that is what our learner adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hundredfold.algorithms.actor_critic import ACTIVATIONS
from hundredfold.algorithms.ppo import PPO
from hundredfold.config.presets import preset_settings
from hundredfold.config.run import LengthSettings, MachineSettings, RunSettings
from hundredfold.profiling.measure import HUNDREDFOLD, summarise
from hundredfold.training.build import Components, build
from hundredfold.training.estimate import gradient_steps

PRESETS: Final = ("default", "meta-train-64")
BARE: Final = "bare torch loop"
MANY_EPOCHS: Final = 10_000


def bench_dvrp_train(
    repeats: int = 5, on_progress: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """A row per preset for whole epochs, and one for the bare loop beside each."""
    rows: list[dict[str, Any]] = []
    for preset in PRESETS:
        on_progress(f"preset {preset}")
        rows += _preset_rows(preset, repeats, on_progress)
    return rows


def _preset_rows(
    preset: str, repeats: int, on_progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    settings = replace(
        preset_settings("dvrp", preset),
        length=LengthSettings(epochs=MANY_EPOCHS),
        machine=MachineSettings(device="cpu", threads=1),
    )
    parts = build(settings)
    try:
        assert parts.belief_model is not None, "presets of dvrp have a belief model"
        assert isinstance(parts.learner, PPO), "presets of dvrp learn with PPO"
        parts.backend.broadcast(parts.belief_model.params(exploring=True))
        parts.collector.start(settings.seed)
        _epoch(parts)  # compiles and allocates
        bare = BareLoop(parts.learner, parts.settings)
        bare.run()
        epochs, bares = [], []
        for number in range(repeats):
            on_progress(f"preset {preset}: {number + 1} of {repeats}")
            epochs.append(_epoch(parts))
            bares.append(bare.run())
    finally:
        parts.close()
    samples = parts.settings.rollout.samples_per_epoch
    rate = summarise([samples / sum(phases.values()) for phases in epochs])
    update = summarise([phases["update"] for phases in epochs])
    alone = summarise(bares)
    middle = {name: summarise([phases[name] for phases in epochs]).median for name in epochs[0]}
    common = {"preset": preset, "num_envs": parts.settings.rollout.num_envs, "repeats": repeats}
    return [
        {
            "system": HUNDREDFOLD,
            **common,
            "samples_per_second": rate.median,
            "low": rate.low,
            "high": rate.high,
            **{f"{name}_seconds": seconds for name, seconds in middle.items()},
            "gradient_steps": gradient_steps(parts.settings),
            "ratio_to_bare": update.median / alone.median,
        },
        {
            "system": BARE,
            **common,
            "low": alone.low,
            "high": alone.high,
            "update_seconds": alone.median,
            "gradient_steps": bare.steps,
            "ratio_to_bare": 1.0,
        },
    ]


def _epoch(parts: Components) -> dict[str, float]:
    """Seconds of one whole epoch by phase; they add up to all of it."""
    collector, learner, belief_model = parts.collector, parts.learner, parts.belief_model
    assert belief_model is not None
    before = _counted(parts)
    begin = time.perf_counter()
    collector.collect(
        learner.policy,
        learner.buffer,
        parts.settings.rollout.num_steps,
        step_callbacks=[belief_model.observe],
    )
    collected = time.perf_counter()
    learner.update()
    apply_table = time.perf_counter()
    belief_model.update()
    parts.backend.broadcast(belief_model.params(exploring=True))
    done = time.perf_counter()
    phases = {name: seconds - before[name] for name, seconds in _counted(parts).items()}
    phases["env"] -= phases["oracle"]
    phases["bookkeeping"] = collected - begin - sum(phases.values())
    return {**phases, "update": apply_table - collected, "belief_model": done - apply_table}


def _counted(parts: Components) -> dict[str, float]:
    collector = parts.collector
    return {
        "policy": collector.policy_seconds,
        "env": collector.env_seconds,
        "oracle": parts.backend.timings()["oracle"],
    }


class BareLoop:
    """The gradient steps of one update, and nothing else."""

    def __init__(self, learner: PPO, settings: RunSettings) -> None:
        ppo = settings.ppo
        self.clip, self.entropy = ppo.clip_range, ppo.entropy_coefficient
        self.norm = ppo.max_gradient_norm
        samples = settings.rollout.samples_per_epoch
        self.size = ppo.minibatch_size or samples // ppo.num_minibatches
        width = learner.network.inputs.width
        num_actions = learner.spec.num_logits
        torch.manual_seed(0)
        self.rows = torch.randn(samples, width)
        self.actions = torch.randint(num_actions, (samples, 1))
        self.log_probs = torch.randn(samples, 1) - 3.0
        self.advantages = torch.randn(samples, 1)
        self.targets = torch.randn(samples, 1)
        widths = (width, *settings.network.hidden_sizes)
        activation = ACTIVATIONS[settings.network.activation]
        self.value = _stack((*widths, 1), activation)
        self.policy = _stack((*widths, num_actions), activation)
        together = [*self.value.parameters(), *self.policy.parameters()]
        if ppo.separate_epochs:
            self.passes = [("value", ppo.num_value_epochs), ("policy", ppo.num_policy_epochs)]
        else:
            self.passes = [("both", ppo.update_epochs)]
        self.parameters = {
            "value": list(self.value.parameters()),
            "policy": list(self.policy.parameters()),
            "both": together,
        }
        self.optimisers = {
            name: torch.optim.Adam(self.parameters[name], lr=1e-4, fused=True)
            for name, _ in self.passes
        }
        self.steps = sum(count for _, count in self.passes) * -(-samples // self.size)

    def run(self) -> float:
        """Seconds of as many gradient steps as an update takes."""
        begin = time.perf_counter()
        for name, passes in self.passes:
            for _ in range(passes):
                order = torch.randperm(len(self.rows))
                for start in range(0, len(order), self.size):
                    self._step(name, order[start : start + self.size])
        return time.perf_counter() - begin

    def _step(self, name: str, picked: Tensor) -> None:
        rows, loss = self.rows[picked], torch.zeros(())
        if name != "policy":
            loss = loss + F.mse_loss(self.value(rows), self.targets[picked])
        if name != "value":
            log_probs = self.policy(rows).log_softmax(-1)
            ratio = (log_probs.gather(1, self.actions[picked]) - self.log_probs[picked]).exp()
            advantage = self.advantages[picked]
            clipped = ratio.clamp(1 - self.clip, 1 + self.clip) * advantage
            entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
            loss = loss - torch.minimum(ratio * advantage, clipped).mean() - self.entropy * entropy
        optimiser = self.optimisers[name]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters[name], self.norm)
        optimiser.step()


def _stack(widths: tuple[int, ...], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])
