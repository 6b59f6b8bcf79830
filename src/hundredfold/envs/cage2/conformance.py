"""Conformance with the original simulator (CybORG): replay of traces, and a check of returns.

`verify` replays recorded blue actions and random draws in the env and compares every field after
every step. `check_returns` compares mean returns of episodes with the env's own random draws.
`recordings/README.md` describes the files.
"""

from __future__ import annotations

import csv
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from hundredfold.core.batch import Array, Arrays, BoolArray
from hundredfold.core.errors import HundredfoldError
from hundredfold.envs.cage2.baselines import make_policy
from hundredfold.envs.cage2.env import Cage2, Cage2Settings, Green, ObservationWrapper, RedAgent, Ruleset
from hundredfold.envs.cage2.evaluation import REDS, Row, mean_and_stderr, step_rewards
from hundredfold.envs.cage2.legend import ACTION_NAMES
from hundredfold.envs.cage2.network import NUM_EXPLOITS
from hundredfold.envs.cage2.network_file import STANDARD
from hundredfold.envs.cage2.random_draws import ERROR_MESSAGES, NO_ERROR
from hundredfold.envs.cage2.raw_observation import RAW_PORTS, Connections, update_exploits
from hundredfold.envs.cage2.red_agents import RED_AGENTS
from hundredfold.envs.cage2.state import DRAWS, INFO, TRUE_STATE

Name = TypeVar("Name", bound=str)

# Traces and mean returns of the original simulator, in the package.
RECORDINGS: Final = Path(__file__).parent / "recordings"
RECORDED_RETURNS: Final = RECORDINGS / "returns.csv"

RULESETS: Final[tuple[Ruleset, ...]] = ("current", "leaderboard")
WRAPPERS: Final[tuple[ObservationWrapper, ...]] = ("table", "cardiff")
NUM_HOSTS: Final = STANDARD.num_hosts
PACKED_BYTES: Final = (STANDARD.num_bits + 7) // 8

# Fields of a trace by shape: (episodes, steps), (episodes, steps, hosts) and (episodes,).
STEP_FIELDS: Final = (
    "blue_action",
    "blue_success",
    "reward10",
    "red_action",
    "red_target",
    "red_success",
    "exploit",
    "exploit_detected",
    "escalate_choice",
    "green_action",
    "green_target",
    "ot_up",
    "red_subnets",
)
HOST_FIELDS: Final = (
    "access",
    "access_first",
    "n_sessions",
    "user_removable",
    "known",
    "scanned",
    "decoys",
    "n_decoys",
)
EPISODE_FIELDS: Final = ("ep_red", "ep_blue", "ep_green", "ep_seed")
# Of the raw observation, in recordings that have them; compared as the channel `exploits`.
RAW_FIELDS: Final = ("raw_ports", "raw_shell")
EXPLOITS: Final = "exploits"

COMPARED: Final = ("obs", "reward10", *INFO, *TRUE_STATE)
ALL_FIELDS: Final = "all"
MAX_STDERRS: Final = 4.0
GREENS: Final[tuple[Green, ...]] = ("sleep", "scan")
_RED_NAMES: Final[dict[str, RedAgent]] = {name: name for name in REDS}


class TraceError(HundredfoldError):
    """A trace or returns file is missing, damaged or of another format."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded episodes of equal length under one ruleset and wrapper."""

    path: Path
    ruleset: Ruleset
    observation: ObservationWrapper
    arrays: Arrays  # fields as above; `obs` (episodes, steps + 1, 52) starts after reset
    red: list[str]  # red agent of each episode

    @property
    def compared(self) -> tuple[str, ...]:
        """Fields that are compared."""
        return (*COMPARED, EXPLOITS) if EXPLOITS in self.arrays else COMPARED

    @property
    def num_steps(self) -> int:
        return int(self.arrays["blue_action"].shape[1])

    def episodes_of(self, red: str, green_scans: bool) -> Array:
        """Indices of the episodes with this red agent and green behaviour."""
        by_red = np.array([name == red for name in self.red])
        return np.flatnonzero(by_red & (self.arrays["ep_green"] == int(green_scans)))


def load_trace(path: str | Path) -> Trace:
    """Read and check a trace file; a `TraceError` names the field that is wrong."""
    path = Path(path)
    arrays = _read(path)
    shape = arrays["blue_action"].shape
    if len(shape) != 2 or 0 in shape:
        raise TraceError(f"{path}: blue_action must be (episodes, steps), got {list(shape)}.")
    shapes: dict[str, tuple[int, ...]] = {
        "obs": (shape[0], shape[1] + 1, PACKED_BYTES),
        **dict.fromkeys(STEP_FIELDS, shape),
        **dict.fromkeys(HOST_FIELDS, (*shape, NUM_HOSTS)),
        **dict.fromkeys(EPISODE_FIELDS, shape[:1]),
    }
    for name, expected in shapes.items():
        if arrays[name].shape != expected:
            raise TraceError(
                f"{path}: {name} has shape {list(arrays[name].shape)}, expected {list(expected)} "
                f"for {shape[0]} episodes of {shape[1]} steps."
            )
        kind = "U" if name in ("ep_red", "ep_blue") else "iu"
        if arrays[name].dtype.kind not in kind:
            expected_type = "text" if kind == "U" else "integers"
            raise TraceError(f"{path}: {name} has type {arrays[name].dtype}, not {expected_type}.")
    limits = {"blue_action": len(ACTION_NAMES), "ep_green": 2, **dict.fromkeys(DRAWS, 256)}
    for name, below in limits.items():
        if arrays[name].min() < 0 or arrays[name].max() >= below:
            raise TraceError(f"{path}: {name} must be in 0..{below - 1}.")
    if arrays["obs"].dtype != np.uint8:
        raise TraceError(f"{path}: obs must be packed bits of type uint8.")
    arrays["obs"] = np.unpackbits(arrays["obs"], axis=-1)[..., : STANDARD.num_bits]
    if RAW_FIELDS[0] in arrays:
        arrays[EXPLOITS] = _recorded_exploits(arrays, path)
    red = [str(name).lower() for name in arrays["ep_red"]]
    unknown = sorted(set(red) - set(RED_AGENTS))
    if unknown:
        raise TraceError(f"{path}: ep_red names {unknown}; known agents: {', '.join(RED_AGENTS)}.")
    return Trace(
        path=path,
        ruleset=_one_of(RULESETS, arrays["ruleset"], f"{path}: ruleset"),
        observation=_one_of(WRAPPERS, arrays["obs_variant"], f"{path}: obs_variant"),
        arrays=arrays,
        red=red,
    )


def _read(path: Path) -> Arrays:
    names = ("ruleset", "obs_variant", "obs", *STEP_FIELDS, *HOST_FIELDS, *EPISODE_FIELDS)
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise TraceError(f"{path} is a single array; expected an .npz file of named arrays.")
        with loaded as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise TraceError(f"{path} is not a cage2 trace: no field {', '.join(missing)}.")
            raw = RAW_FIELDS if all(name in file.files for name in RAW_FIELDS) else ()
            return {name: file[name] for name in (*names, *raw)}
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path} cannot be read as an .npz file: {error}") from error


def _recorded_exploits(arrays: Arrays, path: Path) -> Array:
    """(episodes, steps, hosts, exploits) channel `exploits` that follows from the raw observations."""
    actions = arrays["blue_action"]
    for name, shape in (("raw_ports", (NUM_HOSTS, len(RAW_PORTS))), ("raw_shell", (NUM_HOSTS,))):
        if arrays[name].shape != (*actions.shape, *shape):
            raise TraceError(
                f"{path}: {name} has shape {list(arrays[name].shape)}, expected {[*actions.shape, *shape]}."
            )
    exploits = np.zeros((*actions.shape, NUM_HOSTS, NUM_EXPLOITS), np.uint8)
    for episode, episode_actions in enumerate(actions):
        current = np.zeros((NUM_HOSTS, NUM_EXPLOITS), np.uint8)
        for step, action in enumerate(episode_actions):
            connections = Connections(arrays["raw_ports"][episode, step], arrays["raw_shell"][episode, step] > 0)
            update_exploits(current, connections, int(action))
            exploits[episode, step] = current
    return exploits


def _one_of(names: Sequence[Name], value: Array, field: str) -> Name:
    for name in names:
        if value.shape == () and str(value) == name:
            return name
    raise TraceError(f"{field} must be one of {', '.join(names)}, got {str(value)!r}.")


@dataclass(frozen=True, slots=True)
class Difference:
    """A recorded step whose replay differs."""

    file: str
    episode: int
    red: str
    blue: str
    seed: int
    step: int
    blue_action: str
    draws: dict[str, int]
    error: str  # why a recorded draw is impossible, or ""
    fields: dict[str, tuple[Any, Any]]  # recorded and replayed value of every differing field

    def __str__(self) -> str:
        lines = [
            f"{self.file}: episode {self.episode} ({self.red} against {self.blue}, seed "
            f"{self.seed}), step {self.step}, blue action {self.blue_action}",
            f"  recorded draws: {self.draws}",
        ]
        if self.error:
            lines.append(f"  impossible draw: {self.error}")
        for name, (recorded, replayed) in self.fields.items():
            lines.append(f"  {name}: recorded {recorded}, replayed {replayed}")
        return "\n".join(lines)


@dataclass(slots=True)
class Verification:
    """Result of replaying trace files."""

    rows: list[Row] = field(default_factory=list)  # per file, red agent and field; `all` = steps
    first_difference: Difference | None = None

    @property
    def steps_compared(self) -> int:
        return sum(row["steps_compared"] for row in self.rows if row["field"] == ALL_FIELDS)

    @property
    def steps_equal(self) -> int:
        return sum(row["steps_equal"] for row in self.rows if row["field"] == ALL_FIELDS)

    @property
    def passed(self) -> bool:
        return self.steps_compared > 0 and self.steps_equal == self.steps_compared


def verify(
    paths: Sequence[str | Path],
    ruleset: Ruleset | None = None,
    observation: ObservationWrapper | None = None,
    network_file: str | None = None,
) -> Verification:
    """Replay trace files and compare every field after every step.

    Args:
        paths: trace files (.npz).
        ruleset: ruleset to replay with; by default the file's own.
        observation: wrapper to replay with; by default the file's own.
        network_file: network to replay on, equal to the standard one but for names.
    """
    result = Verification()
    for path in paths:
        trace = load_trace(path)
        rules, wrapper = ruleset or trace.ruleset, observation or trace.observation
        replayed, error_codes = replay(trace, rules, wrapper, network_file)
        equal = {name: _equal_steps(trace.arrays[name], replayed[name]) for name in trace.compared}
        # The observation after reset, one more than steps, counts with the first step.
        equal["obs"][:, 1] &= equal["obs"][:, 0]
        equal["obs"] = equal["obs"][:, 1:]
        all_equal = np.logical_and.reduce([*equal.values(), error_codes == NO_ERROR])
        for red in REDS:
            episodes = np.array([name == red for name in trace.red])
            if not episodes.any():
                continue
            for name, steps in {ALL_FIELDS: all_equal, **equal}.items():
                result.rows.append(
                    {
                        "file": trace.path.name,
                        "ruleset": rules,
                        "observation": wrapper,
                        "red": red,
                        "field": name,
                        "steps_compared": int(steps[episodes].size),
                        "steps_equal": int(steps[episodes].sum()),
                    }
                )
        if result.first_difference is None and not all_equal.all():
            result.first_difference = _difference(trace, replayed, error_codes, all_equal)
    return result


def replay(
    trace: Trace, ruleset: Ruleset, observation: ObservationWrapper, network_file: str | None = None
) -> tuple[Arrays, Array]:
    """Replay the recorded episodes: value of every compared field, and error codes."""
    recorded = trace.arrays
    replayed = {name: np.zeros(recorded[name].shape, np.int32) for name in trace.compared}
    error_codes = np.zeros(recorded["blue_action"].shape, np.uint8)
    for red in REDS:
        for green in GREENS:
            episodes = trace.episodes_of(red, green_scans=green == "scan")
            if not len(episodes):
                continue
            settings = Cage2Settings(
                red=red,
                green=green,
                # One more than recorded, so that the last step does not start a new episode.
                horizons=(trace.num_steps + 1,),
                ruleset=ruleset,
                observation=observation,
                channels=(EXPLOITS,) if EXPLOITS in replayed else (),
                network_file=network_file,
            )
            env = Cage2(np.arange(len(episodes)), settings)
            out = env.reset(seed=0)
            replayed["obs"][episodes, 0] = out.observation["bits"]
            for step in range(trace.num_steps):
                draws = {name: recorded[name][episodes, step] for name in DRAWS}
                env.advance_with_draws(recorded["blue_action"][episodes, step], draws)
                error_codes[episodes, step] = env.error_codes
                env.error_codes[:] = NO_ERROR
                replayed["obs"][episodes, step + 1] = out.observation["bits"]
                if EXPLOITS in replayed:
                    replayed[EXPLOITS][episodes, step] = out.observation[EXPLOITS]
                replayed["reward10"][episodes, step] = np.rint(10 * out.reward)
                for name, array in (*out.info.items(), *out.true_state.items()):
                    replayed[name][episodes, step] = array
    return replayed, error_codes


def _equal_steps(recorded: Array, replayed: Array) -> BoolArray:
    """(episodes, steps) True where all entries are equal."""
    equal = recorded == replayed
    return np.asarray(equal.reshape(*equal.shape[:2], -1).all(axis=-1))


def _difference(trace: Trace, replayed: Arrays, error_codes: Array, all_equal: BoolArray) -> Difference:
    """The first step that differs."""
    episode, step = (int(number) for number in np.argwhere(~all_equal)[0])
    recorded = trace.arrays
    fields: dict[str, tuple[Any, Any]] = {}
    compared = {name: (name, step) for name in trace.compared} | {"obs": ("obs", step + 1)}
    if step == 0:
        compared["obs after reset"] = ("obs", 0)
    for label, (name, at) in compared.items():
        expected, actual = recorded[name][episode, at], replayed[name][episode, at]
        if not np.array_equal(expected, actual):
            fields[label] = (expected.tolist(), actual.tolist())
    return Difference(
        file=trace.path.name,
        episode=episode,
        red=trace.red[episode],
        blue=str(recorded["ep_blue"][episode]),
        seed=int(recorded["ep_seed"][episode]),
        step=step,
        blue_action=ACTION_NAMES[int(recorded["blue_action"][episode, step])],
        draws={name: int(recorded[name][episode, step]) for name in DRAWS},
        error=ERROR_MESSAGES.get(int(error_codes[episode, step]), ""),
        fields=fields,
    )


def check_returns(path: str | Path, episodes: int = 2000, seed: int = 0) -> list[Row]:
    """Compare mean returns of the env with those recorded from the original simulator.

    Shorter episodes are prefixes of the longest ones, as recorded.

    Args:
        path: returns file (.csv).
        episodes: episodes per policy and red agent.
        seed: seed of the envs and of `random`.

    Returns:
        One row per recorded mean; `passed` if both means are within 4 combined standard errors.
    """
    rows: list[Row] = []
    recorded = _read_returns(Path(path))
    for policy, red in dict.fromkeys((row.policy, row.red) for row in recorded):
        rows_of_pair = [row for row in recorded if (row.policy, row.red) == (policy, red)]
        settings = Cage2Settings(red=red, horizons=(max(row.length for row in rows_of_pair),))
        rewards = step_rewards(make_policy(policy, seed), settings, episodes, seed)
        for row in rows_of_pair:
            mean, stderr = mean_and_stderr(rewards[:, : row.length].sum(axis=1))
            combined = float(np.hypot(stderr, row.stderr))
            gap = abs(mean - row.mean)
            rows.append(
                {
                    "policy": policy,
                    "red": red,
                    "horizon": row.length,
                    "mean": mean,
                    "stderr": stderr,
                    "episodes": episodes,
                    "reference": row.mean,
                    "reference_stderr": row.stderr,
                    "stderrs_apart": gap / combined if combined else 0.0 if gap < 1e-9 else np.inf,
                    "passed": gap <= MAX_STDERRS * combined + 1e-9,
                }
            )
    return rows


@dataclass(frozen=True, slots=True)
class RecordedReturns:
    """One row of a returns file."""

    policy: str
    red: RedAgent
    length: int
    mean: float
    stderr: float


def _read_returns(path: Path) -> list[RecordedReturns]:
    try:
        with path.open(newline="") as file:
            rows = [
                RecordedReturns(
                    policy=row["blue"],
                    red=_RED_NAMES[row["red"].lower()],
                    length=int(row["length"]),
                    mean=float(row["mean"]),
                    stderr=float(row["std"]) / math.sqrt(int(row["episodes"])),
                )
                for row in csv.DictReader(file)
            ]
    except OSError as error:
        raise TraceError(f"the returns file {path} cannot be read: {error}") from error
    except (KeyError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise TraceError(
            f"{path} is not a returns file: it needs the columns blue, red, length, episodes, mean "
            f"and std ({type(error).__name__}: {error})."
        ) from error
    if not rows:
        raise TraceError(f"{path} has no rows.")
    return rows
