"""Exceptions and the hints in their messages."""

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
def test_every_error_is_a_hundredfold_error(name):
    kind = getattr(errors, name)
    assert issubclass(kind, HundredfoldError)
    assert not issubclass(kind, (ValueError, RuntimeError))


def test_a_missing_extra_says_how_to_install_it():
    error = MissingExtraError("stable-baselines3", "sb3", "bench train")
    assert "bench train needs stable-baselines3" in str(error)
    assert "pip install 'hundredfold[sb3]'" in str(error)


def test_a_close_name_is_suggested():
    assert suggest("cartpol", ["cartpole", "corridor"]) == "did you mean cartpole?"


def test_several_close_names_are_suggested_closest_first():
    hint = suggest("CartPole-v2", ["CartPole-v0", "CartPole-v1", "Acrobot-v1"])
    assert hint.startswith("did you mean CartPole-v")
    assert "CartPole-v0" in hint
    assert "CartPole-v1" in hint
    assert "Acrobot" not in hint


def test_all_names_are_listed_if_none_is_close():
    assert suggest("zzz", ["corridor", "cartpole"]) == "known names: cartpole, corridor."


def test_the_callers_hint_is_used_if_no_name_is_close():
    assert suggest("zzz", ["corridor"], otherwise="ask a friend.") == "ask a friend."
