"""The mutation check itself: which mutants it makes, and which it chooses."""

import ast

import pytest

import mutants
from helpers.source_mutants import mutant_by_hand, mutants_of, sample

SOURCE = '''
"""A docstring with 1 + 1."""

LIMIT: int = 3


class RunSettings:
    """Hyperparameters."""

    rate: float = 0.5


def count(items, limit=7):
    total = 0
    for item in items:
        if item < limit and not item.hidden:
            total += max(item.size, 2) ** 2
        elif item is None:
            raise ValueError(f"{1 + 1} items: " + "expected 3")
    items.clear()
    return -total
'''

CHANGED_LINES = {
    ("LIMIT: int = 3", "LIMIT: int = 4"),
    ("def count(items, limit=7):", "def count(items, limit=8):"),
    ("total = 0", "total = 1"),
    ("if item < limit and not item.hidden:", "if item <= limit and not item.hidden:"),
    ("if item < limit and not item.hidden:", "if item < limit or not item.hidden:"),
    ("if item < limit and not item.hidden:", "if item < limit and item.hidden:"),
    ("total += max(item.size, 2) ** 2", "total -= max(item.size, 2) ** 2"),
    ("total += max(item.size, 2) ** 2", "pass"),
    ("total += max(item.size, 2) ** 2", "total += min(item.size, 2) ** 2"),
    ("total += max(item.size, 2) ** 2", "total += max(item.size, 3) ** 2"),
    ("total += max(item.size, 2) ** 2", "total += max(item.size, 2) * 2"),
    ("total += max(item.size, 2) ** 2", "total += max(item.size, 2) ** 3"),
    ("elif item is None:", "elif item is not None:"),
    ("items.clear()", "pass"),
    ("return -total", "return total"),
}


def test_every_place_is_changed_except_messages_and_default_settings():
    found = mutants_of(SOURCE)
    assert {(mutant.old, mutant.new) for mutant in found} == CHANGED_LINES
    assert len(found) == len(CHANGED_LINES)
    for mutant in found:
        before, after = SOURCE.splitlines(), mutant.text.splitlines()
        assert [i + 1 for i in range(len(before)) if before[i] != after[i]] == [mutant.line]


@pytest.mark.parametrize("target", mutants.TARGETS, ids=lambda target: target.source)
def test_all_mutants_of_the_package_are_valid_python(target):
    source = (mutants.ROOT / mutants.PACKAGE / target.source).read_text()
    found = mutants_of(source)
    assert len(found) >= target.sample
    for mutant in sample(found, target.sample, seed=0):
        ast.parse(mutant.text)
        assert mutant.text != source


def test_the_sample_does_not_depend_on_lines_elsewhere():
    drawn = sample(mutants_of(SOURCE), 5, seed=0)
    later = sample(mutants_of("import os\n\n" + SOURCE), 5, seed=0)
    assert [(one.old, one.new) for one in drawn] == [(one.old, one.new) for one in later]
    assert drawn != sample(mutants_of(SOURCE), 5, seed=1)


def test_mutants_by_hand_and_equivalent_mutants_exist():
    targets = {target.source for target in mutants.TARGETS}
    for source, old, new in mutants.BY_HAND:
        assert source in targets
        assert mutant_by_hand((mutants.ROOT / mutants.PACKAGE / source).read_text(), old, new).line > 0
    for source in mutants.equivalent_sources():
        assert source in targets
        lines = {(one.old, one.new) for one in mutants_of((mutants.ROOT / mutants.PACKAGE / source).read_text())}
        for entry in mutants.equivalent_mutants(source):
            assert (entry["old"], entry["new"]) in lines
            assert entry["reason"]


def test_killed_mutants_are_counted_without_equivalent_ones():
    (mutant, *_) = mutants_of(SOURCE)
    outcomes = ["killed", "killed", "timeout", "survived", "equivalent"]
    results = [mutants.Result(mutant, outcome, 1.0, "the same") for outcome in outcomes]
    assert mutants.percentage(results) == 75.0
    text = mutants.report({"core/rng.py": results})
    assert "| all | 5 | 3 | 1 | 1 | 1 | 75.0 |" in text
    assert text.count(f"    - {mutant.old}\n    + {mutant.new}") == 2
