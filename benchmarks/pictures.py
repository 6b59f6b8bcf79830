"""`python -m benchmarks pictures RUN...`: draws the pictures of the README again.

A replay page of cage2, photographed in Chromium, as GIF; the learning curves of runs on dvrp; and the
stepping speed of cage2 against the number of envs, measured on the spot.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.cage2_stepping import bench_stepping
from hundredfold.cli.cage2 import blue_policy
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cage2.episodes import record_episodes, replay_legend, replay_record
from hundredfold.report.replay import Replay
from hundredfold.report.replay import write_replay as write_page
from hundredfold.training.metrics import read_metrics
from hundredfold.training.run_folder import RunFolder

# The replay: its last step, the seed of the episode, and how it is shown.
FRAMES: Final = 30
SEED: Final = 1
FRAME_MILLISECONDS, LAST_MILLISECONDS = 700, 4000
PAGE_WIDTH, GIF_WIDTH, COLOURS_OF_GIF = 1080, 860, 64
SHOW_STEP: Final = """(step) => {
  const slider = document.querySelector(".position");
  slider.value = step;
  slider.dispatchEvent(new Event("input"));
}"""
SIZES: Final = (1, 3, 10, 30, 100, 300, 1000)
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT, FONT = 640, 340, 84, 62, 18, 30, 17
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
    """The replay page of the shipped policy beside no defence, on the same seed, step by step as a GIF."""
    with TemporaryDirectory() as folder:
        shots = photograph(replay_page(Path(folder) / "replay.html"), FRAMES)
    width, height = shots[0].width, max(shot.height for shot in shots)
    frames = []
    for shot in shots:
        # A panel grows with its decoys; the picture keeps its size.
        frame = Image.new("RGB", (width, height), shot.getpixel((0, 0)))
        frame.paste(shot)
        frames.append(frame.resize((GIF_WIDTH, round(height * GIF_WIDTH / width)), Image.Resampling.LANCZOS))
    palette = frames[-1].quantize(COLOURS_OF_GIF, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    milliseconds = [FRAME_MILLISECONDS] * len(others) + [LAST_MILLISECONDS]
    first.save(path, save_all=True, append_images=others, duration=milliseconds, loop=0, optimize=True)


def replay_page(path: Path) -> Path:
    """Write the page that `hundredfold watch cage2 --policy shipped --beside sleep` writes, with plain names."""
    episode = []
    for name, shown in (("shipped", "trained agent"), ("sleep", "no defence")):
        policy, settings = blue_policy(name, "best", SEED)
        settings = replace(settings, red="b_line", horizons=(FRAMES,))
        episode.append(replay_record(record_episodes(policy, settings, 1, SEED), shown, 0))
    replay = Replay("cage2", {"legend": replay_legend(), "episodes": [episode]}, unit="step")
    return write_page(path, replay, heading="cage2", facts=())


def photograph(page: Path, last: int) -> list[Image.Image]:
    """The panels of a replay page at every step, in Chromium.

    Args:
        page: The page.
        last: Last step.
    """
    browser_program = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_program is None:
        raise SettingsError("pictures of a replay need a browser: install chromium or google-chrome.")
    shots = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=browser_program, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": PAGE_WIDTH, "height": PAGE_WIDTH}, color_scheme="light")
        opened.goto(page.as_uri())
        # The controls would stay in front of the panels; a white page needs no colour of the palette.
        style = ":root { --page: #ffffff } .controls { display: none } * { transition: none !important }"
        opened.add_style_tag(content=style)
        for step in range(last + 1):
            opened.evaluate(SHOW_STEP, step)
            picture = opened.locator(".stage .panels").screenshot()
            shots.append(Image.open(BytesIO(picture)).convert("RGB"))
        browser.close()
    return shots


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
        low, high = (self.lowest(values), max(values)) if self.logarithmic else (0.0, max(values))
        scale = math.log10 if self.logarithmic else float
        span = scale(high) - scale(low) or 1.0
        return lambda value: start + (scale(value) - scale(low)) / span * (end - start)

    def lowest(self, values: Sequence[float]) -> float:
        """The power of ten at which a logarithmic axis starts."""
        return 10.0 ** math.floor(math.log10(min(values)))

    def ticks(self, values: Sequence[float]) -> list[float]:
        """Round values to label."""
        if self.logarithmic:
            first, last = (math.floor(math.log10(bound)) for bound in (min(values), max(values)))
            return [10.0**power for power in range(first, last + 1)]
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
        parts.append(_text(across(tick), HEIGHT - BOTTOM + 22, label(tick), "middle"))
    for tick in vertical.ticks(ys):
        parts.append(_line(LEFT, up(tick), WIDTH - RIGHT, up(tick)))
        parts.append(_text(LEFT - 8, up(tick) + 6, label(tick), "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, horizontal.title, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<g transform="rotate(-90 22 {middle})">{_text(22, middle, vertical.title, "middle")}</g>')
    labels = []
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="3"/>')
        below = HEIGHT - BOTTOM - 40 - (FONT + 6) * (len(series) - 1 - number)
        labels.append(_text(WIDTH - RIGHT - 12, below, name, "end", colour))
    # Above all lines, with a white edge.
    parts.append(f'<g paint-order="stroke" stroke="#ffffff" stroke-width="5">{"".join(labels)}</g>')
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">\n{body}\n</svg>\n'


def label(value: float) -> str:
    """A tick in few characters: 10 M for ten million."""
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e3e6e1"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#3c4248") -> str:
    style = f'font-family="system-ui, sans-serif" font-size="{FONT}" fill="{colour}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
