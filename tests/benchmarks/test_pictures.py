"""Pictures of the README: charts and a replay."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import pictures
from helpers.browser import BROWSER

ROOT = Path(__file__).parents[2]


def test_a_chart_places_points_between_its_axes():
    axis = pictures.Axis("seconds")
    steps = pictures.Axis("steps", logarithmic=True)
    root = ElementTree.fromstring(pictures.chart({"a & b": [(1, 10), (10, 1000)], "c": [(1, 1)]}, axis, steps))
    lines = [line for line in root.iter() if line.tag.endswith("polyline")]
    first, last = ([float(number) for number in pair.split(",")] for pair in lines[0].get("points").split())
    assert last == [pictures.WIDTH - pictures.RIGHT, pictures.TOP]
    assert first[0] > pictures.LEFT
    assert "a & b" in [text.text for text in root.iter() if text.tag.endswith("text")]
    assert steps.ticks([1, 1000]) == [1, 10, 100, 1000]
    assert axis.ticks([9.7]) == [0, 2, 4, 6, 8]


def test_ticks_are_labelled_in_few_characters():
    assert [pictures.label(value) for value in (0, 0.5, 300, 1000, 2_500, 1e7)] == [
        *("0", "0.5", "300", "1 k", "2.5 k", "10 M")
    ]


@BROWSER
@pytest.mark.browser
def test_the_replay_is_the_same_every_time(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "FRAMES", 2)
    for name in ("one.gif", "two.gif"):
        pictures.write_replay(tmp_path / name)
    assert (tmp_path / "one.gif").read_bytes() == (tmp_path / "two.gif").read_bytes()
    with Image.open(tmp_path / "one.gif") as replay:
        assert (replay.n_frames, replay.width) == (3, pictures.GIF_WIDTH)


def test_the_pictures_of_the_readme_are_small():
    folder = ROOT / "docs" / "pictures"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2e6
    readme = (ROOT / "README.md").read_text()
    assert all(f"docs/pictures/{path.name}" in readme for path in folder.iterdir())
