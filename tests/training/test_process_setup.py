"""malloc tuning: freed memory stays with the process, so reallocation causes no page faults."""

import ctypes
from types import SimpleNamespace

import pytest

from helpers.training_runs import run_python
from hundredfold.training import process_setup

ROUNDS = 20
NUM_BLOCKS = 3
BLOCK_BYTES = 12 * 2**20
PAGE = 4096
# prctl option of Linux: huge pages of 2 MB would hide the page faults counted here.
PR_SET_THP_DISABLE = 41

COUNT_FAULTS = f"""
import ctypes, resource
from hundredfold.training.process_setup import tune_malloc
assert tune_malloc()
library = ctypes.CDLL(None)
assert library.prctl({PR_SET_THP_DISABLE}, 1, 0, 0, 0) == 0
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    blocks = [library.malloc({BLOCK_BYTES}) for _ in range({NUM_BLOCKS})]
    for block in blocks: ctypes.memset(block, 1, {BLOCK_BYTES})
    for block in blocks: library.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults():
    return int(run_python(COUNT_FAULTS, expect=0).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
@pytest.mark.process
def test_freed_memory_is_reused_without_page_faults():
    pages = NUM_BLOCKS * BLOCK_BYTES // PAGE
    # Only the first round faults its pages in; without tuning, most rounds do.
    assert page_faults() < 1.5 * pages


def test_the_mmap_threshold_is_lowered_for_older_glibc(monkeypatch):
    calls = []

    def mallopt(option, size):
        calls.append((option, size))
        return option != process_setup.MMAP_THRESHOLD or size <= 32 * 2**20

    monkeypatch.setattr(process_setup.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    assert process_setup.tune_malloc()
    assert (process_setup.MMAP_THRESHOLD, 32 * 2**20) in calls
    assert calls[-1] == (process_setup.TRIM_THRESHOLD, process_setup.TRIM_THRESHOLD_BYTES)


def test_c_libraries_without_mallopt_are_left_unchanged(monkeypatch):
    monkeypatch.setattr(process_setup.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert not process_setup.tune_malloc()
