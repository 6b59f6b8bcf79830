"""`python -m benchmarks pictures RUN...`: draws the pictures of the README again.

A replay of cage2 as GIF, the learning curves of runs on dvrp, and the stepping speed of cage2 against
the number of envs, measured on the spot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np

from benchmarks.cage2_stepping import bench_stepping
from hundredfold.envs.cage2.blue_agent import BlueAgent
from hundredfold.training.metrics import read_metrics
from hundredfold.training.run_folder import RunFolder

FRAMES: Final = 30
FRAME_MILLISECONDS: Final = 900
GIF_WIDTH: Final = 720
SIZES: Final = (1, 3, 10, 30, 100, 300, 1000)
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 300, 104, 46, 16, 34
COLOURS: Final = ("#0a7abf", "#d1600a", "#169470", "#b2508e", "#8a6d00")

Points = Sequence[tuple[float, float]]


def draw_pictures(runs: Sequence[str], folder: Path, on_progress: Callable[[str], None]) -> list[Path]:
    """Write all pictures; returns their paths.

    Args:
        runs: Run folders of dvrp for the learning curves.
        folder: Where pictures are written.
        on_progress: Called with what is being drawn.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / name for name in ("cage2.gif", "learning.svg", "scaling.svg")]
    on_progress("replay of cage2")
    write_replay(made[0])
    on_progress("learning curves")
    made[1].write_text(learning_curves(runs))
    on_progress("stepping speed of cage2")
    made[2].write_text(scaling())
    return made


def write_replay(path: Path) -> None:
    """An episode of the shipped policy against the b_line red agent."""
    from PIL import Image

    env: Any = gymnasium.make("hundredfold/CAGE2-v0", render_mode="rgb_array", red="b_line")
    agent = BlueAgent.load()
    observation, _ = env.reset(seed=1)
    frames = []
    for _ in range(FRAMES):
        frame = Image.fromarray(env.render())
        height = round(GIF_WIDTH * frame.height / frame.width)
        frames.append(frame.resize((GIF_WIDTH, height)).quantize(32, dither=Image.Dither.NONE))
        observation, *_ = env.step(agent.act(observation["bits"] if isinstance(observation, dict) else observation))
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=FRAME_MILLISECONDS, loop=0, optimize=True)


def learning_curves(runs: Sequence[str]) -> str:
    """Improvement of the days of every epoch over the seconds of training, one line per run."""
    series: dict[str, Points] = {}
    for folder in runs:
        run = RunFolder.open(Path(folder))
        rows = read_metrics(run)
        series[f"seed {run.settings().seed}"] = [(row["wall_seconds"], row["avg_improvement_pct"]) for row in rows]
    return chart(series, Axis("seconds of training"), Axis("driving minutes saved (%)"))


def scaling() -> str:
    """Steps per second on one core against the number of envs, and a loop over single envs."""
    rows = bench_stepping(SIZES, (1,), 3)
    own = [(row["num_envs"], row["steps_per_second"]) for row in rows if row["system"] == "hundredfold"]
    alone = own[0][1]
    series = {"one batch": own, "a loop over single envs": [(size, alone) for size, _ in own]}
    return chart(series, Axis("environments", logarithmic=True), Axis("steps per second", logarithmic=True))


@dataclass(frozen=True, slots=True)
class Axis:
    """Title and scale of an axis."""

    title: str
    logarithmic: bool = False

    def place(self, values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
        """From a value to its place between two coordinates."""
        low, high = (min(values), max(values)) if self.logarithmic else (0.0, max(values))
        scale = math.log10 if self.logarithmic else float
        span = scale(high) - scale(low) or 1.0
        return lambda value: start + (scale(value) - scale(low)) / span * (end - start)

    def ticks(self, values: Sequence[float]) -> list[float]:
        """Round values to label."""
        if self.logarithmic:
            first, last = (math.floor(math.log10(bound)) for bound in (min(values), max(values)))
            return [10.0**power for power in range(first, last + 1) if min(values) <= 10.0**power <= max(values)]
        step = 10.0 ** math.floor(math.log10(max(values) / 2))
        step *= next(factor for factor in (1, 2, 5, 10) if max(values) / (step * factor) <= 6)
        return np.arange(0.0, max(values) + 1e-9, step).tolist()


def chart(series: Mapping[str, Points], horizontal: Axis, vertical: Axis) -> str:
    """A line chart as SVG, readable on light and on dark ground."""
    xs, ys = ([point[axis] for points in series.values() for point in points] for axis in (0, 1))
    across = horizontal.place(xs, LEFT, WIDTH - RIGHT)
    up = vertical.place(ys, HEIGHT - BOTTOM, TOP)
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>']
    for tick in horizontal.ticks(xs):
        parts.append(_line(across(tick), TOP, across(tick), HEIGHT - BOTTOM))
        parts.append(_text(across(tick), HEIGHT - BOTTOM + 16, f"{tick:,.10g}", "middle"))
    for tick in vertical.ticks(ys):
        parts.append(_line(LEFT, up(tick), WIDTH - RIGHT, up(tick)))
        parts.append(_text(LEFT - 6, up(tick) + 4, f"{tick:,.10g}", "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, horizontal.title, "middle"))
    parts.append(f'<g transform="rotate(-90 14 {HEIGHT / 2})">{_text(14, HEIGHT / 2, vertical.title, "middle")}</g>')
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        below = HEIGHT - BOTTOM - 12 - 17 * (len(series) - 1 - number)
        parts.append(_text(WIDTH - RIGHT - 12, below, name, "end", colour))
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">\n{body}\n</svg>\n'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e3e6e1"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#3c4248") -> str:
    style = f'font-family="system-ui, sans-serif" font-size="12" fill="{colour}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
