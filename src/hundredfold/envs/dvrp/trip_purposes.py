"""Trip purposes: destinations, hours of the day and tolerance of shifts."""

from __future__ import annotations

from typing import Final, NamedTuple

HOME, ANYWHERE, OFFICE_OR_ANYWHERE = 0, 1, 2


class Purpose(NamedTuple):
    """A trip purpose of the synthetic population."""

    name: str
    weight: float
    paratransit_weight: float
    origin: int
    destination_roles: tuple[str, ...]
    # Distribution of start times: (from hour, to hour, share).
    hours: tuple[tuple[int, int, float], ...]
    tolerance_factor: float


# Paratransit changes the shares of three purposes; this scales those of the others.
_OTHERS_SCALE: Final = (1.0 - 0.35 - 0.15 - 0.10) / (1.0 - 0.10 - 0.05 - 0.22)

PURPOSES: Final[tuple[Purpose, ...]] = (
    Purpose("work", 0.22, 0.10, HOME, ("office",), ((6, 7, 0.3), (7, 9, 0.55), (9, 11, 0.15)), 0.3),
    Purpose(
        "return home",
        0.16,
        0.16 * _OTHERS_SCALE,
        OFFICE_OR_ANYWHERE,
        (),
        ((15, 16, 0.15), (16, 19, 0.65), (19, 22, 0.2)),
        1.0,
    ),
    Purpose("school", 0.06, 0.06 * _OTHERS_SCALE, HOME, ("school",), ((7, 9, 0.7), (9, 13, 0.3)), 0.5),
    Purpose("medical", 0.10, 0.35, HOME, ("medical",), ((8, 12, 0.55), (12, 16, 0.45)), 0.35),
    Purpose(
        "shopping", 0.14, 0.14 * _OTHERS_SCALE, HOME, ("shopping",), ((10, 12, 0.3), (12, 16, 0.5), (16, 18, 0.2)), 1.0
    ),
    Purpose("errand", 0.05, 0.15, ANYWHERE, ("errand", "shopping"), ((9, 17, 1.0),), 0.8),
    Purpose("dining", 0.07, 0.07 * _OTHERS_SCALE, ANYWHERE, ("dining",), ((11, 13, 0.25), (17, 20, 0.75)), 1.0),
    Purpose(
        "recreation",
        0.14,
        0.14 * _OTHERS_SCALE,
        HOME,
        ("recreation",),
        ((8, 12, 0.5), (12, 17, 0.4), (17, 19, 0.1)),
        1.25,
    ),
    Purpose("social", 0.06, 0.06 * _OTHERS_SCALE, HOME, ("home", "social"), ((13, 17, 0.35), (17, 22, 0.65)), 1.1),
)
OTHER: Final = len(PURPOSES)
PURPOSE_NAMES: Final = (*(purpose.name for purpose in PURPOSES), "other")
TOLERANCE_FACTORS: Final = (*(purpose.tolerance_factor for purpose in PURPOSES), 1.0)

# Keywords that map free text to a purpose; the first match decides.
_KEYWORDS: Final = (
    ("return home", ("return home", "going home", "go home", "back home")),
    ("school", ("school", "class", "university", "college", "education")),
    ("medical", ("medical", "doctor", "dentist", "hospital", "therapy", "clinic", "pharmacy")),
    ("shopping", ("shop", "grocer", "market", "mall")),
    ("dining", ("dining", "dinner", "lunch", "brunch", "breakfast", "restaurant", "coffee")),
    ("recreation", ("recreation", "hik", "gym", "workout", "exercise", "park", "sport", "museum", "yoga", "leisure")),
    ("social", ("social", "visit", "friend", "family", "party")),
    ("errand", ("errand", "bank", "post office", "appointment")),
    ("work", ("work", "office", "job", "meeting", "commut")),
)


def normalise_text(text: str) -> str:
    """Lower case, underscores as spaces, single spaces."""
    return " ".join(text.replace("_", " ").lower().split())


def purpose_of(text: str) -> int:
    """Index of the purpose that free text describes; `OTHER` if none matches."""
    normalised = normalise_text(text)
    if normalised in PURPOSE_NAMES:
        return PURPOSE_NAMES.index(normalised)
    for name, keywords in _KEYWORDS:
        if any(keyword in normalised for keyword in keywords):
            return PURPOSE_NAMES.index(name)
    return OTHER
