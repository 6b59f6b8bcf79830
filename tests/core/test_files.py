"""Files of strangers: links, pipes, sizes, nested JSON, and checksums over every bit."""

import json
import os

import pytest

from hundredfold.core.files import (
    open_no_follow,
    parse_json,
    read_bounded,
    read_sealed_json,
    sealed_json,
    write_atomically,
)

TABLE = {"format": 2, "counters": {"epoch": 3, "wall_seconds": 1.25}, "name": "ü"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.json"


@pytest.mark.parametrize("indent", [None, 2])
def test_a_sealed_object_is_plain_json_and_round_trips(path, indent):
    path.write_text(sealed_json(TABLE, indent))
    assert read_sealed_json(path) == TABLE
    assert json.loads(path.read_text())["counters"] == TABLE["counters"]


def test_every_changed_bit_of_a_sealed_object_is_noticed(path):
    data = sealed_json(TABLE).encode()
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="checksum"):
            read_sealed_json(path)


def test_every_truncation_of_a_sealed_object_is_noticed(path):
    data = sealed_json(TABLE).encode()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match="checksum"):
            read_sealed_json(path)


def test_links_are_not_followed(path, tmp_path):
    (tmp_path / "target").write_text("precious")
    path.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic link"):
        read_bounded(path)
    with pytest.raises(OSError, match="symbolic link"):
        open_no_follow(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    write_atomically(path, "new")
    assert not path.is_symlink()
    assert (path.read_text(), (tmp_path / "target").read_text()) == ("new", "precious")


def test_a_link_at_the_temporary_name_is_not_followed(path, tmp_path):
    (tmp_path / "target").write_text("precious")
    path.with_name(f".{path.name}.{os.getpid()}").symlink_to(tmp_path / "target")
    write_atomically(path, "new")
    assert (path.read_text(), (tmp_path / "target").read_text()) == ("new", "precious")


def test_only_files_and_links_are_replaced(path, tmp_path):
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        write_atomically(path, "text")
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_refused_instead_of_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_bounded(path)


def test_the_size_is_checked_before_reading(path):
    with path.open("wb") as file:
        file.truncate(2**40)  # a sparse file that takes no space
    with pytest.raises(OSError, match="expected at most 1,000"):
        read_bounded(path, 1000)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "{", '{"a": 1' + "0" * 5000 + "}", b"\xff\xfe"])
def test_broken_and_nested_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_json(text)
