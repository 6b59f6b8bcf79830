"""Python API: train a run, load its policy, evaluate and export it.

run = hundredfold.train("CartPole-v1", steps=100_000)
policy = hundredfold.load(run.path)
action = policy.act(observation)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hundredfold.algorithms.custom_network import NetworkFunction, using_network
from hundredfold.algorithms.loaded_policy import LoadedPolicy
from hundredfold.backends import make_backend
from hundredfold.config.presets import AUTO, preset_settings
from hundredfold.config.run import CHANGEABLE, Algorithm, EngineName, RunSettings
from hundredfold.config.toml import changed_settings, with_overrides
from hundredfold.core.batch import EnvSpec
from hundredfold.core.errors import CheckpointError, SettingsError, suggest
from hundredfold.core.protocols import EnvFactory
from hundredfold.core.terminal import note
from hundredfold.envs.registry import ENVS, FROM_CALLABLE, callable_factory, canonical_name
from hundredfold.training.auto_config import auto_configure
from hundredfold.training.build import build, check_belief_inputs, check_many_envs
from hundredfold.training.checkpoint import load_checkpoint, saved_epochs
from hundredfold.training.console import announce, extension_note, finished_note, run_banner
from hundredfold.training.engines import OWN, check_resumable, engine_for, weights_of
from hundredfold.training.estimate import warnings_for
from hundredfold.training.evaluate import Actor, Evaluation, evaluation_backend, random_actor
from hundredfold.training.evaluate import evaluate as play
from hundredfold.training.metrics import read_metrics, require_wandb
from hundredfold.training.process_setup import signal_note
from hundredfold.training.run import NO_HOOKS, Epoch, Hooks, Run
from hundredfold.training.run_folder import RunFolder, check_name
from hundredfold.training.stop import StopRule, is_complete, read_stop
from hundredfold.training.trained_policy import belief_params, evaluation_envs, export_policy_folder, load
from hundredfold.training.trust import mark_origin, require_trust
from hundredfold.training.video import Video
from hundredfold.training.video import record_video as record

if TYPE_CHECKING:
    from hundredfold.envs.dvrp.acceptance.model import Responses

__all__ = ["TrainedRun", "evaluate", "export", "export_policy_folder", "load", "record_video", "train"]

MAX_PARALLEL_EPISODES = 256
# Days simulated for the report of a finished dvrp run, fewer if they would take longer than the time
# limit in seconds; `hundredfold report --days` simulates any number.
REPORT_DAYS = 64
REPORT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A finished or stopped training."""

    path: Path
    finished: bool
    network: NetworkFunction | None = None  # that makes the network, where it is the user's

    @property
    def stop_reason(self) -> str | None:
        """Why a stop rule ended the run; None if none did."""
        stop = read_stop(RunFolder.open(self.path))
        return None if stop is None else stop.reason

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per epoch, as in metrics.jsonl."""
        return read_metrics(RunFolder.open(self.path))

    def policy(self, checkpoint: str = "best") -> LoadedPolicy:
        """The trained policy."""
        return load(self.path, checkpoint, network=self.network)


def train(
    env: str | Callable[[], Any] | None = None,
    *,
    algo: Algorithm | None = None,
    preset: str | None = None,
    engine: EngineName | None = None,
    resume: str | Path | None = None,
    init_from: str | Path | None = None,
    trust_run: bool = False,
    save_dir: str | Path = "runs",
    name: str | None = None,
    wandb: bool = False,
    quiet: bool = True,
    report: bool = True,
    stop: StopRule | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    network: NetworkFunction | None = None,
    **settings: Any,
) -> TrainedRun:
    """Train an agent, or resume or extend a run.

    Args:
        env: Name of a built-in env, a Gymnasium id, or a function that makes a Gymnasium env. Not
            needed with `resume`, unless the run was trained on a function.
        algo: Learning algorithm, "ppo" (default), "dqn" or "pqn".
        preset: Settings to start from, as for `--preset`.
        engine: Training library: "hundredfold" (default), "sb3" or "rllib".
        resume: Run folder to continue, bit for bit; a larger `steps`, `episodes` or `epochs` (total
            length) extends it.
        init_from: Run folder on the same env whose weights (best checkpoint) the new run starts from;
            network and algorithm are those of that run unless set.
        trust_run: Import modules and join Ray clusters that only the run folder of `resume` names.
        save_dir: Folder for run folders.
        name: Name of the run folder; by default env, time and seed.
        wandb: Also log to Weights & Biases.
        quiet: Print nothing.
        report: Write report.html at the end.
        stop: Function that gets the metrics of every epoch (as in metrics.jsonl) and returns True, or
            the reason as text, to end the run. See also `stop_at`, `stop_after` and
            `stop_on_plateau` among the settings.
        on_epoch: Function that is called with every complete `Epoch`: number, metrics, policy, path.
        network: Function from the env's spec to a torch module that returns logits and values, instead
            of the built-in network; with `resume` the same one again. PPO only.
        **settings: Any setting by its flag name with underscores, e.g. `num_envs=64`,
            `steps=100_000`, `learning_rate=1e-3`.
    """
    hooks = Hooks(stop, on_epoch, network)
    if network is not None and resume is None:
        settings["network_function"] = _name_of(network)
    if engine is not None:
        settings["engine"] = engine
    if resume is not None:
        kept = RunFolder.open(Path(resume)).settings()
        if isinstance(env, str) and canonical_name(env) != kept.env:
            raise SettingsError(f"{resume} is a run on {kept.env}, not on {env}.")
        if any(given is not None for given in (name, preset, algo, init_from)):
            raise SettingsError(
                "name, preset, algo and init_from cannot be combined with resume: a resumed run keeps its folder, "
                "settings and weights."
            )
        wanted = with_overrides(with_length(kept, settings), settings)
        own = {"env", *settings} if env is not None else set(settings)
        require_trust(RunFolder.open(Path(resume)), wanted, own, trust_run)
        return resume_run(
            Path(resume), wanted, _factory_of(env, wanted), wandb=wandb, quiet=quiet, report=report, hooks=hooks
        )
    if env is None:
        raise SettingsError("train() needs an env, or resume=RUN to continue one.")
    if callable(env) and "env_kwargs" in settings:
        raise SettingsError("env_kwargs need a Gymnasium id; a function makes its own env.")
    named = env if isinstance(env, str) else f"{FROM_CALLABLE}{_name_of(env)}"
    device = str(settings.get("device", "auto"))
    source = None if init_from is None else RunFolder.open(Path(init_from)).settings()
    start = preset_settings(named, preset, algo or (source.algo if source else "ppo"), device, engine or "hundredfold")
    if source is not None:
        start = replace(start, network=source.network)
    start = with_length(start, settings)
    chosen = with_overrides(start, settings)
    return start_run(
        chosen,
        _factory_of(env, chosen),
        given=settings.keys() if preset in (None, AUTO) else None,
        init_from=None if init_from is None else Path(init_from),
        save_dir=Path(save_dir),
        name=name,
        wandb=wandb,
        quiet=quiet,
        report=report,
        hooks=hooks,
    )


def _factory_of(env: str | Callable[[], Any] | None, settings: RunSettings) -> EnvFactory | None:
    """Env factory of a user's function; None for envs with a name."""
    if not callable(env):
        return None
    return callable_factory(env, settings.env_settings, privileged=settings.network.critic == "privileged")


def start_run(
    settings: RunSettings,
    make_envs: EnvFactory | None = None,
    *,
    given: Collection[str] | None = None,
    init_from: Path | None = None,
    recorded: Responses | None = None,
    save_dir: Path,
    name: str | None = None,
    wandb: bool = False,
    quiet: bool = False,
    report: bool = True,
    hooks: Hooks = NO_HOOKS,
) -> TrainedRun:
    """Create a run folder and train in it.

    Args:
        settings: Run settings.
        make_envs: Env factory; by default that of `settings.env`.
        given: Names of settings that the user set; for third-party envs all others are fitted to
            env and device. None fits nothing.
        init_from: Run folder whose weights the run starts from.
        recorded: Recorded responses that the acceptance model of dvrp starts from.
        save_dir: Folder for run folders.
        name: Name of the run folder.
        wandb: Also log to Weights & Biases.
        quiet: Print nothing.
        report: Write report.html at the end.
        hooks: Functions of the user that take part.
    """
    check_name(name)
    if wandb:
        require_wandb()
    check_belief_inputs(settings)
    engine = engine_for(settings)
    weights = None if init_from is None else weights_of(init_from, settings)
    announce(settings, quiet)
    if given is not None and settings.env not in ENVS:
        if weights is not None:
            given = {*given, *(item.name for item in fields(settings.network))}
        settings, lines = auto_configure(settings, given, make_envs)
        if not quiet:
            note("\n".join(lines))
    with using_network(hooks.network):
        check_many_envs(settings, make_envs)
        components = engine.build(settings, make_envs)
    if not quiet:
        if settings.machine.backend == "auto" and settings.engine == OWN:
            note(components.choice.summary)
        if components.threads_note is not None:
            note(components.threads_note)
        for text in warnings_for(settings, components.settings, components.backend.spec):
            note(f"warning: {text}")
    try:
        if weights is not None:
            components.learner.load_weights(weights)
        if recorded is not None:
            from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModel

            if not isinstance(components.belief_model, AcceptanceModel):
                raise SettingsError("recorded responses need dvrp with an acceptance model: --acceptance-model bayes.")
            components.belief_model.learn(recorded)
        folder = RunFolder.create(components.settings, save_dir, name)
        mark_origin(folder, components.settings)
        return _finish(engine.start(folder, components, wandb=wandb, quiet=quiet), report, hooks)
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
    hooks: Hooks = NO_HOOKS,
) -> TrainedRun:
    """Continue a run, or extend it if the settings have another length. The caller checked its trust.

    Args:
        path: Run folder.
        settings: Changed settings; only length, stop rules, backend, device, saving and workers may change.
        make_envs: Env factory, for runs on a user's function.
        wandb: Also log to Weights & Biases.
        quiet: Print nothing.
        report: Write report.html at the end.
        hooks: Functions of the user that take part.
    """
    folder = RunFolder.open(path)
    saved = folder.settings()
    check_resumable(saved)
    settings = settings or saved
    fixed = [name for name in changed_settings(saved, settings) if name.split(".")[0] not in CHANGEABLE]
    if fixed:
        raise SettingsError(
            f"{', '.join(fixed)} cannot change when a run is resumed (its schedules and arrays "
            "depend on it); keep it, or start a new run."
        )
    if wandb:
        require_wandb()
    folder.claim()
    try:
        can_be_finished = settings.stop == saved.stop and is_complete(folder, saved) and _is_whole(folder)
        if can_be_finished and settings.length == saved.length:
            return _finished_before(folder, saved, report, quiet, hooks)
        announce(settings, quiet)
        with using_network(hooks.network):
            check_many_envs(settings, make_envs)
            components = build(settings, make_envs)
        try:
            # A length in steps or episodes may be that of the run, rounded up to whole updates.
            same_length = components.settings.length == saved.length
            if can_be_finished and same_length:
                return _finished_before(folder, saved, report, quiet, hooks)
            if not same_length and saved.length_schedules and not quiet:
                note(extension_note(saved))
            run = Run.resume(folder, components, wandb=wandb, quiet=quiet)
            folder.stop_file.unlink(missing_ok=True)
            folder.write_settings(components.settings)
            mark_origin(folder, components.settings)
            return _finish(run, report, hooks)
        finally:
            components.close()
    finally:
        folder.release()


def _finished_before(folder: RunFolder, settings: RunSettings, report: bool, quiet: bool, hooks: Hooks) -> TrainedRun:
    """A run that has its length already; it gets a report if it has none."""
    if not quiet:
        note(finished_note(folder.path, settings, read_stop(folder)))
    if report and not folder.report_file.exists():
        write_run_report(folder, REPORT_DAYS, seconds=REPORT_SECONDS)
    return TrainedRun(folder.path, True, hooks.network)


def _is_whole(folder: RunFolder) -> bool:
    """Whether the last checkpoint is undamaged; a damaged epoch is trained again."""
    try:
        load_checkpoint(folder, "last")
    except CheckpointError:
        return False
    return True


def export(
    run: str | Path,
    *,
    onnx: str | Path | bool | None = None,
    torchscript: str | Path | bool | None = None,
    checkpoint: str | int = "best",
    network: NetworkFunction | None = None,
) -> list[Path]:
    """Export the policy of a run to ONNX or TorchScript.

    Args:
        run: Run folder.
        onnx: Path of the ONNX file; True for policy.onnx in the run folder.
        torchscript: Path of the TorchScript file; True for policy.pt in the run folder.
        checkpoint: "best", "last" or an epoch.
        network: Function that makes the network, for runs that were trained with one.

    Returns:
        Paths of the files written.
    """
    from hundredfold.training.export import export_onnx, export_torchscript, require_export_extra

    for path in (onnx, torchscript):
        if path and path is not True and not Path(path).parent.is_dir():
            raise SettingsError(f"cannot write {path}: there is no folder {Path(path).parent}; create it first.")
    loaded = load(run, checkpoint, network=network)
    if onnx:
        require_export_extra()
    paths = []
    for path, default, write in ((onnx, "policy.onnx", export_onnx), (torchscript, "policy.pt", export_torchscript)):
        if path:
            paths.append(write(loaded, Path(run) / default if path is True else Path(path)))
    return paths


def write_run_report(folder: RunFolder, days: int = 0, *, seconds: float = math.inf) -> Path:
    """Write the HTML report of a run.

    Args:
        folder: Run folder.
        days: Days to simulate with the trained policy first, for envs with report data; 0 keeps
            the present report data.
        seconds: Time limit of the simulation; fewer days are simulated if they would take longer.
    """
    from hundredfold.report.page import write_report

    entry = ENVS.get(folder.settings().env)
    if days and entry is not None and entry.report_data is not None and saved_epochs(folder):
        from hundredfold.report.run_data import write_report_data

        module = import_module(entry.report_data)
        report_data = module.run_report_data(
            load(folder.path).actor,
            folder.settings().env_settings,
            shared_params=belief_params(folder.path),
            days=days,
            seconds=seconds,
        )
        shown = 0 if report_data is None else report_data.get("days", days)
        if shown < days:
            warnings.warn(
                f"the report shows {shown} simulated days, as {days} would take longer than "
                f"{seconds:.0f} s. All of them: hundredfold report {folder.path} --days {days}",
                stacklevel=2,
            )
        write_report_data(folder, report_data)
    return write_report(folder)


def evaluate(
    target: str | Path,
    *,
    policy: str | None = None,
    episodes: int = 100,
    num_envs: int | None = None,
    max_steps: int = 10_000,
    seed: int = 9999,
    checkpoint: str = "best",
    shift_penalty: float | None = None,
    backend: str | None = None,
    make_env: Callable[[], Any] | None = None,
    network: NetworkFunction | None = None,
    trust_run: bool = False,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Evaluate a trained policy, or a baseline on an env, over whole episodes.

    Args:
        target: Run folder; with `policy`, a built-in env or Gymnasium id.
        policy: Baseline to evaluate instead of a trained policy: "random".
        episodes: Number of episodes.
        num_envs: Number of envs that play them, at most 256; by default as many as episodes, or for
            third-party envs as many as in training. Episodes are the same for the same number.
        max_steps: Steps after which an episode is truncated.
        seed: Seed of the episodes.
        checkpoint: "best", "last" or an epoch.
        shift_penalty: For runs on dvrp with the observation `offers`: driving minutes charged per minute of
            shift, by which the policy weighs offers and the env rewards them; by default that of the training.
        backend: Where envs run; by default that of the run (auto if it is ray).
        make_env: Function that makes the env, for runs on a user's function.
        network: Function that makes the network, for runs that were trained with one.
        trust_run: Import the module of an env that only the run folder names.
        on_progress: Called with the number of finished episodes.
    """
    if min(episodes, max_steps) < 1:
        raise SettingsError(f"episodes must be at least 1, got {episodes}, and so must max_steps, got {max_steps}.")
    if policy is None and not Path(target).exists():
        raise SettingsError(f"{target} is not a run folder; to evaluate a baseline on an env, pass --policy random.")
    if policy is not None and shift_penalty is not None:
        raise SettingsError(f"shift_penalty is for trained policies; the policy {policy} does not read it.")
    trained = load(target, checkpoint, network=network) if policy is None else None
    settings, factory = evaluation_envs(target, make_env, trust_run, shift_penalty)
    # Third-party envs may be costly: no more of them than for training.
    most = MAX_PARALLEL_EPISODES if settings.env in ENVS else settings.rollout.num_envs
    most = most if num_envs is None else min(max(num_envs, 1), MAX_PARALLEL_EPISODES)
    if backend is None and settings.machine.backend == "ray":
        backend = "auto"  # the cluster of a run is for its training
    if backend is not None:
        settings = replace(settings, machine=replace(settings.machine, backend=backend))
    envs = make_backend(*evaluation_backend(settings, factory, min(episodes, most)))
    try:
        shared_params = belief_params(target, checkpoint) if trained else None
        if shared_params is not None:
            envs.broadcast(shared_params)
        act = trained.actor if trained else baseline_actor(policy or "", envs.spec, seed)
        return play(envs, act, episodes, seed, max_steps, on_progress)
    finally:
        envs.close()


def record_video(
    target: str | Path,
    *,
    policy: str | None = None,
    episodes: int = 1,
    max_steps: int = 1000,
    seed: int = 9999,
    checkpoint: str = "best",
    make_env: Callable[[], Any] | None = None,
    trust_run: bool = False,
) -> Video:
    """Frames of whole episodes of a trained policy, or of a baseline on an env; `.write(path)` saves them.

    Args:
        target: Run folder; with `policy`, a built-in env or Gymnasium id.
        policy: Baseline instead of a trained policy: "random".
        episodes: Number of episodes.
        max_steps: Steps after which an episode is truncated.
        seed: Seed of the episodes.
        checkpoint: "best", "last" or an epoch.
        make_env: Function that makes the env with `render_mode="rgb_array"`, for runs on a user's function.
        trust_run: Import the module of an env that only the run folder names.
    """
    if min(episodes, max_steps) < 1:
        raise SettingsError(f"episodes must be at least 1, got {episodes}, and so must max_steps, got {max_steps}.")
    trained = load(target, checkpoint) if policy is None else None
    settings, factory = evaluation_envs(target, make_env, trust_run)
    return record(
        settings.env,
        factory,
        lambda spec: trained.actor if trained else baseline_actor(policy or "", spec, seed),
        episodes=episodes,
        seed=seed,
        max_steps=max_steps,
        shared_params=belief_params(target, checkpoint) if trained else None,
    )


def baseline_actor(name: str, spec: EnvSpec, seed: int) -> Actor:
    """A baseline policy by name."""
    if name not in BASELINES:
        raise SettingsError(f"there is no policy called {name!r}; {suggest(name, BASELINES)}")
    return BASELINES[name](spec, seed)


BASELINES: dict[str, Callable[[EnvSpec, int], Actor]] = {"random": random_actor}


def with_length(settings: RunSettings, given: Mapping[str, Any]) -> RunSettings:
    """Settings without the default length when the caller sets one."""
    names = [item for item in ("epochs", "episodes", "steps") if given.get(item)]
    if not names:
        return settings
    return replace(settings, length=type(settings.length)())


def _finish(run: Run, report: bool, hooks: Hooks) -> TrainedRun:
    """Train to the end and write the report."""
    components, run.hooks = run.components, hooks
    device, env_runner = components.learner.device, components.env_runner_name
    run.display.print(run_banner(run.folder.path, run.settings, env_runner, device))
    if (ignored := signal_note()) is not None:
        run.display.print(f"  {ignored}")
    try:
        finished = engine_for(run.settings).train(run)
        if report:
            run.display.print("writing the report")
            with using_network(hooks.network):
                write_run_report(run.folder, REPORT_DAYS, seconds=REPORT_SECONDS)
        return TrainedRun(run.folder.path, finished, hooks.network)
    finally:
        run.close()


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
