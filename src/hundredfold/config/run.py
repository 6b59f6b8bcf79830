"""Run settings: every part has a settings class of its own, composed here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

from annotated_types import Interval

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.dqn import DQNSettings
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.algorithms.pqn import PQNSettings
from hundredfold.backends.settings import RaySettings, WorkerSettings
from hundredfold.core.batch import EnvSpec
from hundredfold.core.bounds import AtLeastOne, NonNegativeInt, check_bounds
from hundredfold.core.errors import SettingsError
from hundredfold.core.formatting import parse_duration
from hundredfold.rollout.rollout_buffer import RolloutSettings

Algorithm = Literal["ppo", "dqn", "pqn"]
EngineName = Literal["hundredfold", "sb3", "rllib"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSettings:
    """Length of a training: one of the three."""

    epochs: NonNegativeInt = 0
    """Training length in epochs; one epoch is num_steps steps of every env and one update."""
    episodes: NonNegativeInt = 0
    """Training length in episodes, for envs whose episodes all have one length; rounded up to
    epochs."""
    steps: NonNegativeInt = 0
    """Training length in steps of all envs together; rounded up to epochs."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def num_epochs(self, spec: EnvSpec, rollout: RolloutSettings) -> int:
        """Number of epochs, rounded up to whole updates, so that all samples are learned from.

        It is fixed when the run starts, so that schedules know where they end.
        """
        given = {name: getattr(self, name) for name in ("epochs", "episodes", "steps")}
        named = {name: value for name, value in given.items() if value}
        if len(named) != 1:
            raise SettingsError(
                f"set the length of the training with one of --epochs, --episodes and --steps; got "
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
class StopSettings:
    """Rules that end a training before its length; None removes one from a resumed run."""

    stop_at: Annotated[float, Interval(gt=-math.inf, lt=math.inf)] | None = None
    """Stop when an evaluation during training reaches this mean return."""
    stop_after: str | None = None
    """Stop after this wall-clock time of training: 90s, 10m, 1.5h or 2d; ends with an evaluation."""
    stop_on_plateau: NonNegativeInt = 0
    """Stop after this many evaluations in a row without a new best return; 0 never does."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.stop_after is not None:
            try:
                parse_duration(self.stop_after)
            except ValueError as error:
                raise SettingsError(
                    f"stop_after is {self.stop_after!r}; expected a duration such as 90s, 10m, 1.5h or 2d."
                ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """Evaluation of the policy during training."""

    eval_interval: NonNegativeInt = 10
    """Epochs between evaluations; 0 never evaluates."""
    eval_episodes: AtLeastOne = 32
    """Episodes per evaluation, always the same ones."""
    eval_seed: int = 9999
    """Seed of the evaluation envs."""
    eval_max_steps: AtLeastOne = 10_000
    """Steps after which an evaluation episode is truncated."""
    eval_steps: NonNegativeInt = 0
    """Steps of all envs in an evaluation. Once they are taken it counts as many episodes as every env has
    finished, or its first ones, truncated; 0 plays all of them."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingSettings:
    """Checkpoints, console output and videos."""

    save_interval: AtLeastOne = 10
    """Epochs between checkpoints."""
    keep_last: AtLeastOne = 3
    """Checkpoints to keep besides the best one."""
    log_interval: AtLeastOne = 1
    """Epochs between lines on the console; metrics are written every epoch."""
    video_interval: NonNegativeInt = 0
    """Epochs between videos of an episode of the policy, also at the end (extra: video); 0 records none."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """Backend and device. These may change when a run is resumed."""

    backend: str = "auto"
    """Where envs run: in_process (one batch), serial (one after another), processes (worker
    processes, synchronous), first_ready (worker processes, asynchronous), ray (actors on one
    machine or many, which collect whole rollouts); auto profiles the env and chooses among those
    of one machine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the networks; auto takes CUDA where available."""
    threads: Literal["auto"] | Annotated[int, Interval(ge=1, le=1024)] = "auto"
    """Torch threads on the CPU: a number, or auto, which measures large updates with one and more
    threads at the start and keeps what it chose. Sums of floats depend on the number."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """All settings of a training run."""

    env: str
    """Name of a built-in env or a Gymnasium id."""
    seed: int = 42
    """Seed of all random numbers of the run."""
    algo: Algorithm = "ppo"
    """Learning algorithm: ppo (policy gradient), dqn (Q-learning from a replay buffer) or pqn (Q-learning
    from rollouts of many envs); the latter two for one discrete action."""
    engine: EngineName = "hundredfold"
    """Training library: hundredfold, sb3 (Stable-Baselines3) or rllib."""
    length: LengthSettings = field(default_factory=LengthSettings)
    stop: StopSettings = field(default_factory=StopSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    ppo: PPOSettings = field(default_factory=PPOSettings)
    dqn: DQNSettings = field(default_factory=DQNSettings)
    pqn: PQNSettings = field(default_factory=PQNSettings)
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
        """Tables without effect: they have no flags and are not saved."""
        return tuple(name for name in ALGORITHMS if name != self.algo)

    @property
    def learner(self) -> PPOSettings | DQNSettings | PQNSettings:
        """Settings of the selected algorithm."""
        if self.algo == "dqn":
            return self.dqn
        return self.pqn if self.algo == "pqn" else self.ppo

    @property
    def length_schedules(self) -> list[str]:
        """Names of the schedules that end with the run, so that they depend on its length."""
        learner, named = self.learner, {}
        if not isinstance(learner, DQNSettings):
            named["learning rate"] = learner.anneal_learning_rate
        if isinstance(learner, PPOSettings):
            named["entropy bonus"] = learner.anneal_entropy and learner.entropy_coefficient > 0
        else:
            explores_less = learner.exploration_start != learner.exploration_end
            named["exploration"] = learner.exploration_fraction > 0 and explores_less
        belief = self.belief_model
        if belief is not None:
            named["exploration of the acceptance model"] = belief.epsilon_start != belief.epsilon_end
            named["background refits"] = belief.acceptance_refit == "background"
        return [name for name, depends in named.items() if depends]

    def resolved(self, spec: EnvSpec) -> RunSettings:
        """The same settings with num_steps and the number of epochs filled in."""
        rollout = self.rollout
        if rollout.num_steps == 0:
            if spec.episode_steps is None:
                raise SettingsError(f"episodes of {spec.name} have no fixed length; set --num-steps.")
            rollout = replace(rollout, num_steps=spec.episode_steps)
        if not self.evaluation.eval_interval and (self.stop.stop_at is not None or self.stop.stop_on_plateau):
            raise SettingsError(
                "--stop-at and --stop-on-plateau need evaluations during training; set --eval-interval to at least 1."
            )
        epochs = self.length.num_epochs(spec, rollout)
        return replace(self, rollout=rollout, length=LengthSettings(epochs=epochs))


ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

# Tables that may change when a run is resumed; another length extends it.
CHANGEABLE = ("saving", "machine", "processes", "ray", "length", "stop")
