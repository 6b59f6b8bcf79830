"""Training speed on dvrp: epochs by phase, and PPO updates compared with a bare torch loop.

The bare loop does the same number of gradient steps with the same network and minibatch sizes and
the same losses, on data that is already in one tensor. The difference is the learner's overhead.
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

from benchmarks.measure import summarise
from hundredfold.algorithms.actor_critic import ACTIVATIONS
from hundredfold.algorithms.ppo import PPO
from hundredfold.config.presets import preset_settings
from hundredfold.config.run import LengthSettings, MachineSettings, RunSettings
from hundredfold.profiling.scaling import HUNDREDFOLD
from hundredfold.training.build import Components, build
from hundredfold.training.estimate import gradient_steps

PRESETS: Final = ("default", "returns", "meta-train-64")
BARE: Final = "bare torch loop"
MANY_EPOCHS: Final = 10_000


def bench_dvrp_train(repeats: int = 5, on_progress: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """A row of whole epochs per preset, and one of the bare loop for presets that learn from returns."""
    rows: list[dict[str, Any]] = []
    for preset in PRESETS:
        on_progress(f"preset {preset}")
        rows += _preset_rows(preset, repeats, on_progress)
    return rows


def _preset_rows(preset: str, repeats: int, on_progress: Callable[[str], None]) -> list[dict[str, Any]]:
    settings = replace(
        preset_settings("dvrp", preset),
        length=LengthSettings(epochs=MANY_EPOCHS),
        machine=MachineSettings(device="cpu", threads=1),
    )
    components = build(settings)
    try:
        assert components.belief_model is not None, "dvrp presets have a belief model"
        assert isinstance(components.learner, PPO), "dvrp presets use PPO"
        components.backend.broadcast(components.belief_model.params(exploring=True))
        components.collector.start(settings.seed)
        _epoch(components)  # compiles and allocates
        learns_from_returns = settings.ppo.advantages == "gae"
        bare = BareLoop(components.learner, components.settings) if learns_from_returns else None
        if bare is not None:
            bare.run()
        epochs, bare_seconds = [], []
        for number in range(repeats):
            on_progress(f"preset {preset}: {number + 1} of {repeats}")
            epochs.append(_epoch(components))
            if bare is not None:
                bare_seconds.append(bare.run())
    finally:
        components.close()
    samples = components.settings.rollout.samples_per_epoch
    rate = summarise([samples / sum(phases.values()) for phases in epochs])
    medians = {name: summarise([phases[name] for phases in epochs]).median for name in epochs[0]}
    common = {"preset": preset, "num_envs": components.settings.rollout.num_envs, "repeats": repeats}
    whole = {
        "system": HUNDREDFOLD,
        **common,
        "samples_per_second": rate.median,
        "low": rate.low,
        "high": rate.high,
        **{f"{name}_seconds": seconds for name, seconds in medians.items()},
    }
    if bare is None:
        return [whole]
    bare_update = summarise(bare_seconds)
    return [
        {
            **whole,
            "gradient_steps": gradient_steps(components.settings),
            "ratio_to_bare": medians["update"] / bare_update.median,
        },
        {
            "system": BARE,
            **common,
            "update_seconds_low": bare_update.low,
            "update_seconds_high": bare_update.high,
            "update_seconds": bare_update.median,
            "gradient_steps": bare.steps,
            "ratio_to_bare": 1.0,
        },
    ]


def _epoch(components: Components) -> dict[str, float]:
    """Seconds of one epoch by phase; their sum is the whole epoch."""
    collector, learner, belief_model = (components.collector, components.learner, components.belief_model)
    assert belief_model is not None
    before = _timings(components)
    start = time.perf_counter()
    collector.collect(
        learner.policy, learner.buffer, components.settings.rollout.num_steps, step_callbacks=[belief_model.observe]
    )
    collected = time.perf_counter()
    learner.update()
    updated = time.perf_counter()
    belief_model.update()
    components.backend.broadcast(belief_model.params(exploring=True))
    done = time.perf_counter()
    phases = {name: seconds - before[name] for name, seconds in _timings(components).items()}
    phases["env"] -= phases["oracle"]
    phases["bookkeeping"] = collected - start - sum(phases.values())
    return {**phases, "update": updated - collected, "belief_model": done - updated}


def _timings(components: Components) -> dict[str, float]:
    collector = components.collector
    return {
        "policy": collector.policy_seconds,
        "env": collector.env_seconds,
        "oracle": components.backend.timings()["oracle"],
    }


class BareLoop:
    """The gradient steps of one PPO update without anything else."""

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
        self.value = _mlp((*widths, 1), activation)
        self.policy = _mlp((*widths, num_actions), activation)
        both = [*self.value.parameters(), *self.policy.parameters()]
        if ppo.separate_epochs:
            self.passes = [("value", ppo.num_value_epochs), ("policy", ppo.num_policy_epochs)]
        else:
            self.passes = [("both", ppo.update_epochs)]
        self.parameters = {
            "value": list(self.value.parameters()),
            "policy": list(self.policy.parameters()),
            "both": both,
        }
        self.optimisers = {
            name: torch.optim.Adam(self.parameters[name], lr=1e-4, fused=True) for name, _ in self.passes
        }
        self.steps = sum(count for _, count in self.passes) * -(-samples // self.size)

    def run(self) -> float:
        """Seconds of the gradient steps of one update."""
        start_time = time.perf_counter()
        for name, passes in self.passes:
            for _ in range(passes):
                order = torch.randperm(len(self.rows))
                for start in range(0, len(order), self.size):
                    self._step(name, order[start : start + self.size])
        return time.perf_counter() - start_time

    def _step(self, name: str, indices: Tensor) -> None:
        rows, loss = self.rows[indices], torch.zeros(())
        if name != "policy":
            loss = loss + F.mse_loss(self.value(rows), self.targets[indices])
        if name != "value":
            log_probs = self.policy(rows).log_softmax(-1)
            ratio = (log_probs.gather(1, self.actions[indices]) - self.log_probs[indices]).exp()
            advantage = self.advantages[indices]
            clipped = ratio.clamp(1 - self.clip, 1 + self.clip) * advantage
            entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
            loss = loss - torch.minimum(ratio * advantage, clipped).mean() - self.entropy * entropy
        optimiser = self.optimisers[name]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters[name], self.norm)
        optimiser.step()


def _mlp(widths: tuple[int, ...], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])
