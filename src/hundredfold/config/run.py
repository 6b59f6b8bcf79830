"""All settings of a run on one page: every part keeps its own class, and here they are composed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.dqn import DQNSettings
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import EnvSpec
from hundredfold.core.errors import SettingsError
from hundredfold.distributed.settings import RaySettings
from hundredfold.rollout.rollout_buffer import RolloutSettings

Algorithm = Literal["ppo", "dqn"]
EngineName = Literal["hundredfold", "sb3", "rllib"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSettings:
    """How long to train: one of the three."""

    epochs: int = 0
    """Epochs to train; one epoch is num_steps steps of every env."""
    episodes: int = 0
    """Episodes to train, for envs whose episodes all have one length; rounded up to epochs."""
    steps: int = 0
    """Steps of all envs together to train; rounded up to epochs."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("epochs", "episodes", "steps")}
        if min(given.values()) < 0:
            raise SettingsError(f"the length of a run cannot be negative, got {given}.")

    def num_epochs(self, spec: EnvSpec, rollout: RolloutSettings) -> int:
        """Epochs, rounded up to whole updates: nothing that is gathered goes unlearned.

        The number is fixed when the run starts, so that schedules know where they end.
        """
        given = {name: getattr(self, name) for name in ("epochs", "episodes", "steps")}
        named = {name: value for name, value in given.items() if value}
        if len(named) != 1:
            raise SettingsError(
                f"say how long to train with one of --epochs, --episodes and --steps; got "
                f"{named or 'none of them'}."
            )
        interval = rollout.policy_update_interval
        if self.epochs:
            return -(-self.epochs // interval) * interval
        steps = self.steps
        if self.episodes:
            if spec.episode_steps is None:
                raise SettingsError(
                    f"episodes of {spec.name} have no fixed length, so --episodes "
                    f"{self.episodes} does not say how long to train; use --steps or --epochs."
                )
            steps = self.episodes * spec.episode_steps
        return -(-steps // (rollout.samples_per_epoch * interval)) * interval


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """How the policy is judged while it trains."""

    eval_interval: int = 10
    """Epochs between evaluations; 0 never evaluates."""
    eval_episodes: int = 32
    """Episodes per evaluation, always the same ones."""
    eval_seed: int = 9999
    """Seed of the evaluation envs."""
    eval_max_steps: int = 10_000
    """Steps after which an evaluation episode is cut off."""

    def __post_init__(self) -> None:
        if self.eval_interval < 0 or min(self.eval_episodes, self.eval_max_steps) < 1:
            raise SettingsError(
                f"eval_interval ({self.eval_interval}) must not be negative; eval_episodes "
                f"({self.eval_episodes}) and eval_max_steps ({self.eval_max_steps}) must be at "
                "least 1."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingSettings:
    """What is written while training."""

    save_interval: int = 10
    """Epochs between checkpoints."""
    keep_last: int = 3
    """Checkpoints to keep besides the best one."""
    log_interval: int = 1
    """Epochs between lines on the console; metrics are written every epoch."""

    def __post_init__(self) -> None:
        for name in ("save_interval", "keep_last", "log_interval"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """Where a run runs. These may change when it is resumed."""

    backend: str = "auto"
    """Where envs run: in_process (one batch), serial (one after another), processes (workers, all
    wait for the slowest), first_ready (workers, nobody waits), ray (actors on one machine or many,
    which collect whole rollouts); auto measures and chooses among those of one machine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where networks run; auto takes CUDA when there is one."""
    threads: int = 1
    """Threads of torch on the CPU; more than one rarely helps networks of this size."""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise SettingsError(f"threads must be at least 1, got {self.threads}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything that decides what a run does."""

    env: str
    """An env's name or a Gymnasium id."""
    seed: int = 42
    """Everything random follows from this number."""
    algo: Algorithm = "ppo"
    """Who learns: ppo (from fresh rollouts) or dqn (from a replay; single discrete actions)."""
    engine: EngineName = "hundredfold"
    """Whose code learns: ours, that of Stable-Baselines3 (sb3) or that of RLlib (rllib)."""
    length: LengthSettings = field(default_factory=LengthSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    ppo: PPOSettings = field(default_factory=PPOSettings)
    dqn: DQNSettings = field(default_factory=DQNSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    saving: SavingSettings = field(default_factory=SavingSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)
    processes: WorkerSettings = field(default_factory=WorkerSettings)
    ray: RaySettings = field(default_factory=RaySettings)
    belief_model: Any = None
    env_settings: Any = None

    @property
    def unused(self) -> tuple[str, ...]:
        """Tables that play no part: they have no flags and are not written down."""
        return tuple(name for name in ALGORITHMS if name != self.algo)

    @property
    def learner(self) -> PPOSettings | DQNSettings:
        """The settings of the algorithm that learns."""
        return self.dqn if self.algo == "dqn" else self.ppo

    def resolved(self, spec: EnvSpec) -> RunSettings:
        """The same run with the steps of an epoch and its length in epochs spelled out."""
        rollout = self.rollout
        if rollout.num_steps == 0:
            if spec.episode_steps is None:
                raise SettingsError(
                    f"episodes of {spec.name} have no fixed length; say --num-steps for an epoch."
                )
            rollout = replace(rollout, num_steps=spec.episode_steps)
        epochs = self.length.num_epochs(spec, rollout)
        return replace(self, rollout=rollout, length=LengthSettings(epochs=epochs))


ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

# What may differ between a run and its continuation.
CHANGEABLE = ("saving", "machine", "processes", "ray")
