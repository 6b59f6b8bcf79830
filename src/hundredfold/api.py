"""hundredfold from Python: train a run, load its policy, judge it.

run = hundredfold.train("CartPole-v1", steps=100_000)
policy = hundredfold.load(run.path)
action = policy.act(observation)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from hundredfold.algorithms.loaded_policy import LoadedPolicy
from hundredfold.backends import make_backend
from hundredfold.config.devices import torch_device
from hundredfold.config.presets import AUTO, preset_settings
from hundredfold.config.run import CHANGEABLE, Algorithm, EngineName, RunSettings
from hundredfold.config.toml import changed_settings, to_toml, with_overrides
from hundredfold.core.batch import EnvSpec, with_prefix, without_prefix
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.protocols import EnvFactory, SharedParams
from hundredfold.envs.registry import (
    ENVS,
    FROM_CALLABLE,
    callable_factory,
    canonical_name,
    env_factory,
)
from hundredfold.training.auto_config import auto_configure
from hundredfold.training.build import build, load_belief_model
from hundredfold.training.checkpoint import load_checkpoint, save_checkpoint, saved_epochs
from hundredfold.training.console import announce, run_banner
from hundredfold.training.engines import OWN, check_resumable, engine_for
from hundredfold.training.estimate import warnings_for
from hundredfold.training.evaluate import Actor, Evaluation, evaluation_backend, random_actor
from hundredfold.training.evaluate import evaluate as play
from hundredfold.training.metrics import read_metrics, require_wandb
from hundredfold.training.run import Run
from hundredfold.training.run_folder import RunFolder, write_atomically
from hundredfold.training.saved_policy import saved_policy

MAX_PARALLEL_EPISODES = 256
# Days a finished policy plays for its page; `hundredfold report --days` plays more.
REPORT_DAYS = 64


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A finished or stopped training."""

    path: Path
    finished: bool

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per epoch, as in metrics.jsonl."""
        return read_metrics(RunFolder.open(self.path))

    def policy(self, checkpoint: str = "best") -> LoadedPolicy:
        """What it learned."""
        return load(self.path, checkpoint)


def train(
    env: str | Callable[[], Any] | None = None,
    *,
    algo: Algorithm | None = None,
    preset: str | None = None,
    engine: EngineName | None = None,
    resume: str | Path | None = None,
    save_dir: str | Path = "runs",
    name: str | None = None,
    wandb: bool = False,
    quiet: bool = True,
    report: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Train on an env, a Gymnasium id or a function that makes a Gymnasium env.

    Settings go by the names of the command line with underscores: `num_envs=64`, `steps=100_000`,
    `learning_rate=1e-3`; `algo` (ppo or dqn) and `preset` say what they start from, and `engine`
    whose code learns (hundredfold, sb3 or rllib). With `resume`, a run folder is continued instead.
    """
    if engine is not None:
        settings["engine"] = engine
    if resume is not None:
        kept = RunFolder.open(Path(resume)).settings()
        if isinstance(env, str) and canonical_name(env) != kept.env:
            raise SettingsError(f"{resume} is a run on {kept.env}, not on {env}.")
        if name is not None or preset is not None or algo is not None:
            raise SettingsError(
                "a resumed run keeps its folder and settings; leave name, preset and algo away."
            )
        wanted = with_overrides(kept, settings)
        return resume_run(
            Path(resume),
            wanted,
            _factory_of(env, wanted),
            wandb=wandb,
            quiet=quiet,
            report=report,
        )
    if env is None:
        raise SettingsError("train() needs an env, or resume=RUN to continue one.")
    if callable(env) and "env_kwargs" in settings:
        raise SettingsError("env_kwargs go with a Gymnasium id; a function makes its own env.")
    named = env if isinstance(env, str) else f"{FROM_CALLABLE}{_name_of(env)}"
    device = str(settings.get("device", "auto"))
    start = with_length(preset_settings(named, preset, algo or "ppo", device), settings)
    chosen = with_overrides(start, settings)
    return start_run(
        chosen,
        _factory_of(env, chosen),
        given=settings.keys() if preset in (None, AUTO) else None,
        save_dir=Path(save_dir),
        name=name,
        wandb=wandb,
        quiet=quiet,
        report=report,
    )


def _factory_of(env: str | Callable[[], Any] | None, settings: RunSettings) -> EnvFactory | None:
    """How to make the envs of somebody's function; None for envs that have a name."""
    if not callable(env):
        return None
    seed_episodes = getattr(settings.env_settings, "seed_episodes", True)
    return callable_factory(env, seed_episodes=seed_episodes)


def start_run(
    settings: RunSettings,
    make_envs: EnvFactory | None = None,
    *,
    given: Container[str] | None = None,
    save_dir: Path,
    name: str | None = None,
    wandb: bool = False,
    quiet: bool = False,
    report: bool = True,
) -> TrainedRun:
    """Make a run folder and train in it.

    With `given`, the names of settings that the user has chosen, all others are fitted to the env
    and the machine where the env is somebody else's.
    """
    if wandb:
        require_wandb()
    engine = engine_for(settings)
    announce(settings, quiet)
    if given is not None and settings.env not in ENVS:
        settings, lines = auto_configure(settings, given, make_envs)
        if not quiet:
            print("\n".join(lines), file=sys.stderr)
    components = engine.build(settings, make_envs)
    if not quiet:
        if settings.machine.backend == "auto" and settings.engine == OWN:
            print(components.choice.summary, file=sys.stderr)
        for text in warnings_for(settings, components.settings, components.backend.spec):
            print(f"warning: {text}", file=sys.stderr)
    try:
        folder = RunFolder.create(components.settings, save_dir, name)
        return _finish(engine.start(folder, components, wandb=wandb, quiet=quiet), report)
    finally:
        components.close()


def resume_run(
    path: Path,
    settings: RunSettings | None = None,
    make_envs: EnvFactory | None = None,
    *,
    wandb: bool = False,
    quiet: bool = False,
    report: bool = True,
) -> TrainedRun:
    """Continue a run; only where it runs and what it writes may change."""
    folder = RunFolder.open(path)
    kept = folder.settings()
    check_resumable(kept)
    settings = settings or kept
    fixed = [
        name for name in changed_settings(kept, settings) if name.split(".")[0] not in CHANGEABLE
    ]
    if fixed:
        raise SettingsError(
            f"{', '.join(fixed)} cannot change when a run is resumed (its schedules and arrays "
            "depend on it); leave it as it was, or start a new run."
        )
    if wandb:
        require_wandb()
    folder.claim()
    try:
        announce(settings, quiet)
        components = build(settings, make_envs)
        try:
            run = Run.resume(folder, components, wandb=wandb, quiet=quiet)
            write_atomically(folder.settings_file, to_toml(components.settings))
            return _finish(run, report)
        finally:
            components.close()
    finally:
        folder.release()


def load(run: str | Path, checkpoint: str | int = "best", device: str = "cpu") -> LoadedPolicy:
    """The policy of a run; `checkpoint` is best, last or the number of an epoch."""
    folder = RunFolder.open(Path(run))
    settings = folder.settings()
    saved = load_checkpoint(folder, str(checkpoint), parts={"learner"})
    network = without_prefix("network", saved.parts["learner"])
    policy = saved_policy(settings, saved.spec, network, torch_device(device))
    return LoadedPolicy(policy, saved.spec, saved.epoch, settings.seed)


def belief_params(run: str | Path, checkpoint: str | int = "best") -> SharedParams | None:
    """Parameters of a run's belief model at a checkpoint; None if the run has none."""
    belief_model = load_belief_model(RunFolder.open(Path(run)), str(checkpoint))
    return None if belief_model is None else belief_model.params(exploring=False)


def export_policy_folder(run: str | Path, path: str | Path, checkpoint: str = "best") -> Path:
    """Copy what `load` needs of a run, and nothing else, to a folder that can be passed on."""
    source = RunFolder.open(Path(run))
    saved = load_checkpoint(source, checkpoint, parts={"learner"})
    network = without_prefix("network", saved.parts["learner"])
    saved.parts = {"learner": with_prefix("network", network)}
    target = RunFolder.create(source.settings(), Path(path).parent, Path(path).name)
    save_checkpoint(target, saved)
    target.release()
    return target.path


def export(
    run: str | Path,
    *,
    onnx: str | Path | bool | None = None,
    torchscript: str | Path | bool | None = None,
    checkpoint: str | int = "best",
) -> list[Path]:
    """Write a run's policy for other programs; True means policy.onnx or policy.pt in the run."""
    from hundredfold.training.export import export_onnx, export_torchscript, require_export_extra

    loaded = load(run, checkpoint)
    if onnx:
        require_export_extra()
    paths = []
    for asked, usual, write in (
        (onnx, "policy.onnx", export_onnx),
        (torchscript, "policy.pt", export_torchscript),
    ):
        if asked:
            paths.append(write(loaded, Path(run) / usual if asked is True else Path(asked)))
    return paths


def draw_page(folder: RunFolder, days: int = 0) -> Path:
    """Draw the page of a run.

    With `days`, its policy plays that many first on envs that have something to show of them.
    """
    from hundredfold.report.page import write_report

    entry = ENVS.get(folder.settings().env)
    if days and entry is not None and entry.report_data is not None and saved_epochs(folder):
        from hundredfold.report.dvrp_sections import write_report_data

        recorded = import_module(entry.report_data).record_report_data(
            load(folder.path).actor,
            folder.settings().env_settings,
            shared_params=belief_params(folder.path),
            days=days,
        )
        write_report_data(folder, recorded)
    return write_report(folder)


def evaluate(
    target: str | Path,
    *,
    policy: str | None = None,
    episodes: int = 100,
    max_steps: int = 10_000,
    seed: int = 9999,
    checkpoint: str = "best",
    backend: str | None = None,
    make_env: Callable[[], Any] | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Play whole episodes with a run's policy, or with a named rule on an env."""
    if min(episodes, max_steps) < 1:
        raise SettingsError(
            f"episodes must be at least 1, got {episodes}, and so must max_steps, got {max_steps}."
        )
    is_run = (Path(target) / "settings.toml").exists()
    if policy is None and not Path(target).exists():
        raise SettingsError(
            f"{target} is not a run folder; to play a rule on an env, name it: --policy random."
        )
    learned = load(target, checkpoint) if policy is None else None
    settings = RunFolder.open(Path(target)).settings() if is_run else preset_settings(str(target))
    factory = (
        callable_factory(make_env) if make_env else env_factory(settings.env, settings.env_settings)
    )
    # Somebody else's envs may be costly: no more of them than training would open.
    most = MAX_PARALLEL_EPISODES if settings.env in ENVS else settings.rollout.num_envs
    if backend is not None:
        settings = replace(settings, machine=replace(settings.machine, backend=backend))
    envs = make_backend(*evaluation_backend(settings, factory, min(episodes, most)))
    try:
        shared_params = belief_params(target, checkpoint) if learned else None
        if shared_params is not None:
            envs.broadcast(shared_params)
        act = learned.actor if learned else baseline_actor(policy or "", envs.spec, seed)
        return play(envs, act, episodes, seed, max_steps, on_progress)
    finally:
        envs.close()


def baseline_actor(name: str, spec: EnvSpec, seed: int) -> Actor:
    """A policy that needs no learning, by name."""
    if name not in RULES:
        raise SettingsError(f"there is no policy called {name!r}; {suggest(name, RULES)}")
    return RULES[name](spec, seed)


RULES: dict[str, Callable[[EnvSpec, int], Actor]] = {"random": random_actor}


def with_length(settings: RunSettings, given: Mapping[str, Any]) -> RunSettings:
    """Forget the default length when the caller names one."""
    names = [item for item in ("epochs", "episodes", "steps") if given.get(item)]
    if not names:
        return settings
    return replace(settings, length=type(settings.length)())


def _finish(run: Run, report: bool) -> TrainedRun:
    """Train to the end and draw the page."""
    components = run.components
    run.display.say(
        run_banner(run.folder.path, run.settings, components.env_runner, components.learner.device)
    )
    try:
        finished = engine_for(run.settings).train(run)
        if report:
            run.display.say("drawing the page")
            draw_page(run.folder, REPORT_DAYS)
        return TrainedRun(run.folder.path, finished)
    finally:
        run.close()


def _name_of(function: Callable[[], Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
