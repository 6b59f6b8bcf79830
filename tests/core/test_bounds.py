"""Range checks of settings."""

import math
from dataclasses import dataclass
from typing import Annotated

import pytest
from annotated_types import Gt, Interval, Lt

from hundredfold.core.bounds import AtLeastOne, Fraction, NonNegativeInt, Positive, check_bounds
from hundredfold.core.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    count: AtLeastOne = 1
    workers: NonNegativeInt | None = None
    rate: Positive = 0.1
    share: Fraction = 0.5
    widths: tuple[AtLeastOne, ...] = (64, 64)
    angle: Annotated[float, Gt(-1), Lt(1)] = 0.0
    momentum: Annotated[float, Interval(gt=0, le=1)] = 1.0
    name: str = "anything"

    def __post_init__(self):
        check_bounds(self)


def test_values_within_bounds_pass():
    Example()
    Example(count=1, workers=0, rate=1e-9, share=1.0, widths=(1,), angle=0.99, momentum=1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 0}, r"count must be at least 1, got 0\."),
        ({"count": 10**30}, r"count must be at most 1,000,000,000,000,000, got a number of 31 digits\."),
        ({"widths": (1, 10**30)}, r"widths must be at most 1,000,000,000,000,000, got a number of 31 digits\."),
        ({"workers": -1}, r"workers must be at least 0, got -1\."),
        ({"rate": 0.0}, r"rate must be above 0, got 0\.0\."),
        ({"rate": math.nan}, r"rate must be above 0, got nan\."),
        ({"share": 1.5}, r"share must be at least 0 and at most 1, got 1\.5\."),
        ({"widths": (64, 0)}, r"widths must be at least 1, got \(64, 0\)\."),
        ({"angle": 1.0}, r"angle must be above -1 and below 1, got 1\.0\."),
        ({"momentum": 0.0}, r"momentum must be above 0 and at most 1, got 0\.0\."),
    ],
)
def test_a_value_outside_its_bounds_is_named_with_the_bound(wrong, message):
    with pytest.raises(SettingsError, match=message):
        Example(**wrong)
