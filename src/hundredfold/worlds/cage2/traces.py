"""Recorded episodes of the original simulator: what a trace file holds, read with care."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from hundredfold.core.batch import Array, Arrays
from hundredfold.core.errors import HundredfoldError
from hundredfold.worlds.cage2.blue_moves import NUM_ACTIONS
from hundredfold.worlds.cage2.network import NUM_BITS, NUM_HOSTS
from hundredfold.worlds.cage2.red_agents import RED_AGENTS
from hundredfold.worlds.cage2.state import DRAWS
from hundredfold.worlds.cage2.world import Ruleset, Wrapper

Word = TypeVar("Word", bound=str)

RULESETS: Final[tuple[Ruleset, ...]] = ("current", "leaderboard")
WRAPPERS: Final[tuple[Wrapper, ...]] = ("table", "cardiff")
PACKED_BYTES: Final = (NUM_BITS + 7) // 8

# Fields by shape: per episode and step, the same with one entry per host, and per episode.
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


class TraceError(HundredfoldError):
    """A recording that is missing, damaged or of another kind."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded episodes of equal length, played under one ruleset and wrapper."""

    path: Path
    ruleset: Ruleset
    observation: Wrapper
    arrays: Arrays  # fields as above; `obs` (episodes, steps + 1, 52), first the one after reset
    red: list[str]  # per episode, by our names

    @property
    def num_steps(self) -> int:
        return int(self.arrays["blue_action"].shape[1])

    def episodes_of(self, red: str, green_scans: bool) -> Array:
        """The numbers of the episodes that these two played."""
        by_red = np.array([name == red for name in self.red])
        return np.flatnonzero(by_red & (self.arrays["ep_green"] == int(green_scans)))


def load_trace(path: str | Path) -> Trace:
    """Read a trace file; anything unexpected is refused by name."""
    path = Path(path)
    arrays = _read(path)
    shape = arrays["blue_action"].shape
    if len(shape) != 2 or 0 in shape:
        raise TraceError(f"{path}: blue_action must be (episodes, steps), got {list(shape)}.")
    wanted: dict[str, tuple[int, ...]] = {
        "obs": (shape[0], shape[1] + 1, PACKED_BYTES),
        **dict.fromkeys(STEP_FIELDS, shape),
        **dict.fromkeys(HOST_FIELDS, (*shape, NUM_HOSTS)),
        **dict.fromkeys(EPISODE_FIELDS, shape[:1]),
    }
    for name, expected in wanted.items():
        if arrays[name].shape != expected:
            raise TraceError(
                f"{path}: {name} has shape {list(arrays[name].shape)}, expected {list(expected)} "
                f"to go with {shape[0]} episodes of {shape[1]} steps."
            )
        kind = "U" if name in ("ep_red", "ep_blue") else "iu"
        if arrays[name].dtype.kind not in kind:
            raise TraceError(f"{path}: {name} has type {arrays[name].dtype}, which it cannot have.")
    limits = {"blue_action": NUM_ACTIONS, "ep_green": 2, **dict.fromkeys(DRAWS, 256)}
    for name, below in limits.items():
        if arrays[name].min() < 0 or arrays[name].max() >= below:
            raise TraceError(f"{path}: {name} must be in 0..{below - 1}.")
    if arrays["obs"].dtype != np.uint8:
        raise TraceError(f"{path}: obs must be packed bits of type uint8.")
    arrays["obs"] = np.unpackbits(arrays["obs"], axis=-1)[..., :NUM_BITS]
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
            raise TraceError(f"{path} is a single array, not an .npz file of named ones.")
        with loaded as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise TraceError(f"{path} has no field {', '.join(missing)}; it is no cage2 trace.")
            return {name: file[name] for name in names}
    except FileNotFoundError:
        raise TraceError(f"there is no file {path}.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path} cannot be read as an .npz file: {error}") from error


def _one_of(known: Sequence[Word], value: Array, what: str) -> Word:
    for word in known:
        if value.shape == () and str(value) == word:
            return word
    raise TraceError(f"{what} must be one of {', '.join(known)}, got {str(value)!r}.")
