"""Errors: one family, and hints that help."""

import pytest

from hundredfold.core import errors
from hundredfold.core.errors import HundredfoldError, MissingExtraError, suggest


@pytest.mark.parametrize(
    "name",
    [
        "SettingsError",
        "ShapeError",
        "ActionError",
        "CallOrderError",
        "EnvError",
        "CheckpointError",
        "TrainingError",
        "MissingExtraError",
    ],
)
def test_whoever_catches_the_family_catches_every_refusal(name):
    kind = getattr(errors, name)
    assert issubclass(kind, HundredfoldError)
    assert not issubclass(kind, (ValueError, RuntimeError))


def test_a_missing_extra_says_how_to_get_it():
    error = MissingExtraError("stable-baselines3", "sb3", "bench train")
    assert "bench train needs stable-baselines3" in str(error)
    assert "pip install 'hundredfold[sb3]'" in str(error)


def test_a_near_name_is_suggested():
    assert suggest("cartpol", ["cartpole", "corridor"]) == "did you mean cartpole?"


def test_several_near_names_are_suggested_closest_first():
    hint = suggest("CartPole-v2", ["CartPole-v0", "CartPole-v1", "Acrobot-v1"])
    assert hint.startswith("did you mean CartPole-v")
    assert "CartPole-v0" in hint
    assert "CartPole-v1" in hint
    assert "Acrobot" not in hint


def test_far_from_every_name_all_are_listed_in_order():
    assert suggest("zzz", ["corridor", "cartpole"]) == "known names: cartpole, corridor."


def test_far_from_every_name_the_callers_own_advice_wins():
    assert suggest("zzz", ["corridor"], otherwise="ask a friend.") == "ask a friend."
