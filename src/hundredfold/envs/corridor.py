"""Corridor: walk to the exit at the right end. A minimal env with action masks.

It is the example of a built-in env in plain numpy, and keeps the contract tests fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from hundredfold.core import rng
from hundredfold.core.batch import Array, ArraySpec, BoolArray, EnvSpec, IntArray, StepBatch
from hundredfold.core.bounds import AtLeastOne, check_bounds
from hundredfold.core.errors import ShapeError
from hundredfold.core.protocols import SharedParams
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.rendering import BLUE, CARD, RED, RED_BACK, Canvas, LastStep

LEFT, RIGHT, WAIT = 0, 1, 2
STEP_REWARD, EXIT_REWARD = -0.1, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CorridorSettings:
    """Settings of Corridor."""

    length: Annotated[int, Ge(2)] = 6
    """Cells of the corridor; the exit is behind the last one."""
    max_episode_steps: AtLeastOne = 30
    """Steps after which an episode is truncated."""

    def __post_init__(self) -> None:
        check_bounds(self)


class Corridor(ArrayBatchEnv):
    """Walk right to the exit. Left is masked at the wall; waiting is allowed but useless.

    The reward is -0.1 per step and +1 at the exit, so the best return from cell c is
    `1 - 0.1 * (length - c)`. An episode starts in a random cell of the left half.
    """

    def __init__(self, env_ids: IntArray, settings: CorridorSettings | None = None) -> None:
        self.settings = settings or CorridorSettings()
        length = self.settings.length
        spec = EnvSpec(
            name="corridor",
            observation={"cell": ArraySpec((1,), "int64", 0, length - 1, categories=(length,))},
            action_nvec=(3,),
            has_mask=True,
            info={"toll_paid": ArraySpec((), "float64")},
            episode_info={"reached_exit": ArraySpec((), "bool")},
            true_state={"cell": ArraySpec((), "int64", 0, length)},
        )
        super().__init__(spec, env_ids)
        self.steps = np.zeros(self.num_envs, np.int64)
        # (envs, length) cost of entering a cell, set by `set_shared_params`.
        self.toll = np.zeros((self.num_envs, length))

    @property
    def cell(self) -> IntArray:
        """(envs,) current cell, stored in the true state itself."""
        return self.out.true_state["cell"]

    def start(self) -> None:
        self._start_rows(np.ones(self.num_envs, bool))
        self._write_observations()

    def step(self, actions: IntArray) -> StepBatch:
        out, length = self.out, self.settings.length
        self.cell[:] += np.where(actions == RIGHT, 1, np.where(actions == LEFT, -1, 0))
        self.steps += 1
        out.terminated[:] = self.cell == length
        out.truncated[:] = (self.steps >= self.settings.max_episode_steps) & ~out.terminated
        inside = np.minimum(self.cell, length - 1)
        out.info["toll_paid"][:] = np.where(
            out.terminated | (actions == WAIT), 0.0, self.toll[np.arange(self.num_envs), inside]
        )
        out.reward[:] = STEP_REWARD + EXIT_REWARD * out.terminated - out.info["toll_paid"]

        ended = out.ended
        out.final_observation["cell"][:, 0] = inside
        out.episode_info["reached_exit"][:] = out.terminated
        self.episodes[ended] += 1
        self._start_rows(ended)
        self._write_observations()
        return out

    def set_shared_params(self, shared_params: SharedParams) -> None:
        """Set `toll`, (length,): the cost of entering each cell."""
        if "toll" not in shared_params:
            return
        if np.shape(shared_params["toll"]) != (self.settings.length,):
            raise ShapeError(
                f"set_shared_params() got a toll of shape {np.shape(shared_params['toll'])}; "
                f"this corridor has {self.settings.length} cells."
            )
        self.toll[:] = shared_params["toll"]

    def state_arrays(self) -> dict[str, Array]:
        return {"steps": self.steps, "toll": self.toll}

    def _start_rows(self, rows: BoolArray) -> None:
        keys = rng.spawn(self.env_keys[rows], self.episodes[rows])
        self.cell[rows] = rng.integers(keys, 0, self.settings.length // 2)
        self.steps[rows] = 0

    def _write_observations(self) -> None:
        self.out.observation["cell"][:, 0] = self.cell
        assert self.out.mask is not None
        self.out.mask[:] = True
        self.out.mask[:, LEFT] = self.cell > 0


class CorridorRendering:
    """A row of cells with the exit behind the last one."""

    fps: ClassVar[int] = 4
    cell_pixels: ClassVar[int] = 48

    def __init__(self, env: Corridor) -> None:
        self.env = env

    def text(self, last: LastStep) -> str:
        place, length = int(self.env.cell[0]), self.env.settings.length
        cells = "".join("A" if cell == place else "." for cell in range(length))
        return f"|{cells}>\nstep {self.env.steps[0]}: cell {place} of {length}"

    def image(self, last: LastStep) -> Array:
        place, length, side = int(self.env.cell[0]), self.env.settings.length, self.cell_pixels
        canvas = Canvas(side * (length + 2), side * 3)
        for cell in range(length + 1):
            fill = RED_BACK if cell == length else CARD
            canvas.box((side * (cell + 0.5), side), (side - 4, side - 4), fill)
        canvas.circle((side * (place + 1) - 2, side * 1.5 - 2), side / 4, BLUE)
        canvas.text((side * (length + 1) - 2, side * 1.5 - 2), "exit", 13, RED, "mm")
        canvas.text((side / 2, 14), f"step {self.env.steps[0]}", 15)
        return canvas.array()
