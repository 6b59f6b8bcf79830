"""Memory that is freed stays with the process, so that asking for it again costs nothing."""

import ctypes
from types import SimpleNamespace

import pytest

from helpers.training_runs import run_python
from hundredfold.training import process_setup

ROUNDS = 20
PIECES = 3
PIECE_BYTES = 12 * 2**20
PAGE = 4096
# Of Linux: pages of 2 MB, where all memory comes in them, would hide what is counted here.
NO_HUGE_PAGES = 41

COUNT_FAULTS = f"""
import ctypes, resource
from hundredfold.training.process_setup import tune_malloc
assert tune_malloc()
library = ctypes.CDLL(None)
assert library.prctl({NO_HUGE_PAGES}, 1, 0, 0, 0) == 0
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    pieces = [library.malloc({PIECE_BYTES}) for _ in range({PIECES})]
    for piece in pieces: ctypes.memset(piece, 1, {PIECE_BYTES})
    for piece in pieces: library.free(piece)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults():
    return int(run_python(COUNT_FAULTS, expect=0).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_memory_that_was_freed_is_there_when_it_is_asked_for_again():
    pages = PIECES * PIECE_BYTES // PAGE
    # The first round touches them; without it, most rounds do.
    assert page_faults() < 1.5 * pages


def test_older_versions_get_as_much_as_they_take(monkeypatch):
    asked = []

    def mallopt(option, size):
        asked.append((option, size))
        return option != process_setup.MMAP_THRESHOLD or size <= 32 * 2**20

    monkeypatch.setattr(process_setup.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    assert process_setup.tune_malloc()
    assert (process_setup.MMAP_THRESHOLD, 32 * 2**20) in asked
    assert asked[-1] == (process_setup.TRIM_THRESHOLD, process_setup.TRIM_THRESHOLD_BYTES)


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(process_setup.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert not process_setup.tune_malloc()
