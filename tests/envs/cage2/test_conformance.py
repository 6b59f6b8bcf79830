import dataclasses

import numpy as np
import pytest

from helpers.cage2_game import TRACES
from hundredfold.core.errors import HundredfoldError, SettingsError
from hundredfold.envs.cage2.baselines import make_policy
from hundredfold.envs.cage2.conformance import COMPARED, RECORDED_RETURNS, TraceError, check_returns, verify
from hundredfold.envs.cage2.env import Cage2Settings
from hundredfold.envs.cage2.evaluation import evaluate_table, step_rewards


def test_every_recorded_step_is_equal_in_every_field():
    result = verify(TRACES)
    assert str(result.first_difference) == "None"
    assert result.passed
    assert result.steps_compared == result.steps_equal == 50_300
    assert {row["red"] for row in result.rows} == {"b_line", "meander", "sleep"}
    assert {row["field"] for row in result.rows} == {"all", "exploits", *COMPARED}
    assert all(row["steps_equal"] == row["steps_compared"] for row in result.rows)
    assert len(COMPARED) == 16


def altered(tmp_path, source=TRACES[2], **changes):
    """A copy of a trace file with some fields replaced; None omits a field."""
    with np.load(source) as file:
        arrays = dict(file) | changes
    path = tmp_path / "altered.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def field_of(name, source=TRACES[2]):
    with np.load(source) as file:
        return file[name].copy()


def test_a_changed_field_is_reported(tmp_path):
    rewards = field_of("reward10")
    rewards[3, 41] -= 10
    result = verify([altered(tmp_path, reward10=rewards)])
    assert not result.passed
    assert result.steps_compared - result.steps_equal == 1
    wrong = [row for row in result.rows if row["steps_equal"] < row["steps_compared"]]
    assert {row["field"] for row in wrong} == {"all", "reward10"}
    difference = result.first_difference
    assert (difference.file, difference.episode, difference.step) == ("altered.npz", 3, 41)
    assert difference.fields["reward10"] == (rewards[3, 41], rewards[3, 41] + 10)
    assert "reward10: recorded" in str(difference)


def test_a_changed_observation_after_reset_counts_with_the_first_step(tmp_path):
    obs = field_of("obs")
    obs[0, 0, 0] = 255
    difference = verify([altered(tmp_path, obs=obs)]).first_difference
    assert (difference.episode, difference.step) == (0, 0)
    assert list(difference.fields) == ["obs after reset"]


def test_an_impossible_draw_counts_as_a_difference(tmp_path):
    detected = field_of("exploit_detected")
    episode, step = np.argwhere(detected == 1)[0]
    detected[episode, step] = 255
    difference = verify([altered(tmp_path, exploit_detected=detected)]).first_difference
    assert (difference.episode, difference.step) == (episode, step)
    assert "exploit_detected" in difference.error
    assert "impossible draw" in str(difference)


def test_the_wrong_ruleset_or_wrapper_fails():
    assert not verify(TRACES[1:2], ruleset="current").passed
    assert not verify(TRACES[:1], ruleset="leaderboard").passed
    assert not verify(TRACES[:1], observation="cardiff").passed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"access": None}, "no field access"),
        ({"known": np.zeros((8, 100), np.uint8)}, r"known has shape \[8, 100\]"),
        ({"blue_action": np.zeros(8, np.uint8)}, "blue_action must be"),
        ({"blue_action": np.full((8, 100), 145, np.uint8)}, r"blue_action must be in 0\.\.144"),
        ({"ep_green": np.full(8, 2, np.uint8)}, r"ep_green must be in 0\.\.1"),
        ({"reward10": np.zeros((8, 100))}, "reward10 has type float64"),
        ({"ruleset": np.array("2021")}, "ruleset must be one of current, leaderboard"),
        ({"obs_variant": np.array(["table"])}, "obs_variant must be one of"),
        ({"ep_red": np.array(["Sun_Tzu"] * 8)}, "ep_red names"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_damaged_trace_raises_with_the_field_name(tmp_path, changes, message):
    with pytest.raises(TraceError, match=message):
        verify([altered(tmp_path, **changes)])


def test_files_that_are_not_traces_raise(tmp_path):
    with pytest.raises(TraceError, match="does not exist"):
        verify([tmp_path / "missing.npz"])
    (tmp_path / "text.npz").write_text("not a zip file")
    with pytest.raises(TraceError, match=r"cannot be read as an \.npz file"):
        verify([tmp_path / "text.npz"])
    (tmp_path / "half.npz").write_bytes(TRACES[2].read_bytes()[:5000])
    with pytest.raises(TraceError, match=r"cannot be read as an \.npz file"):
        verify([tmp_path / "half.npz"])
    np.save(tmp_path / "single.npy", np.zeros(3))
    with pytest.raises(TraceError, match="single array"):
        verify([tmp_path / "single.npy"])
    with pytest.raises(TraceError, match="cannot be read"):
        verify([altered(tmp_path, access=np.array([{}], dtype=object))])


@pytest.mark.parametrize("seed", [0, 1])
def test_mean_returns_agree_with_the_original_simulator(seed):
    rows = check_returns(RECORDED_RETURNS, episodes=2000, seed=seed)
    assert len(rows) == 27
    assert [row for row in rows if not row["passed"]] == []


def test_a_wrong_mean_return_fails(tmp_path):
    text = RECORDED_RETURNS.read_text().replace("-1136.2008", "-1126.2008")
    (tmp_path / "returns.csv").write_text(text)
    failed = [row for row in check_returns(tmp_path / "returns.csv", 300) if not row["passed"]]
    assert [(row["policy"], row["red"], row["horizon"]) for row in failed] == [("sleep", "b_line", 100)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("blue,red\nsleep,B_line\n", "is not a returns file"),
        ("blue,red,length,episodes,mean,std\nsleep,Sun_Tzu,30,9,1,1\n", "is not a returns file"),
        ("blue,red,length,episodes,mean,std\nbest,Sleep,30,9,1,1\n", "unknown blue policy 'best'"),
    ],
)
def test_a_damaged_returns_file_raises(tmp_path, text, message):
    path = tmp_path / "returns.csv"
    path.write_text(text)
    with pytest.raises(HundredfoldError, match=message):
        check_returns(path, episodes=1)
    with pytest.raises(TraceError, match="cannot be read"):
        check_returns(tmp_path / "missing.csv")


def test_the_official_table_has_nine_cells_a_total_and_the_published_entry():
    rows = evaluate_table(make_policy("reactive"), episodes=200, name="reactive")
    evaluated = [row for row in rows if row["policy"] == "reactive"]
    assert [(row["red"], row["horizon"]) for row in evaluated[:-1]] == [
        (red, length) for length in (30, 50, 100) for red in ("b_line", "meander", "sleep")
    ]
    assert evaluated[-1]["red"] == "total"
    assert evaluated[-1]["mean"] == pytest.approx(sum(row["mean"] for row in evaluated[:-1]))
    assert evaluated[-1]["mean"] == pytest.approx(-170.3, abs=1.0)
    published = [row for row in rows if row["policy"] == "CardiffUni"]
    assert sum(row["mean"] for row in published[:-1]) == pytest.approx(published[-1]["mean"])


def test_a_cell_of_the_table_agrees_with_the_recorded_mean():
    (cell, *_) = evaluate_table(make_policy("sleep"), 500, reds=["meander"], lengths=[100])
    recorded_stderr = 71.2820 / np.sqrt(250)
    assert abs(cell["mean"] + 968.8140) < 4 * np.hypot(cell["stderr"], recorded_stderr)


def test_rewards_do_not_depend_on_the_batch_size():
    settings = Cage2Settings(red="meander", horizons=(40,))
    whole = step_rewards(make_policy("reactive"), settings, episodes=50, seed=3)
    parts = step_rewards(make_policy("reactive"), settings, episodes=50, seed=3, batch=7)
    np.testing.assert_array_equal(whole, parts)


def test_a_stateful_policy_is_reset_before_each_batch_of_episodes():
    class StatefulPolicy:
        resets = ()

        def reset(self, num_envs):
            self.resets += (num_envs,)

        def __call__(self, observation):
            return np.zeros(len(observation["bits"]), int)

    policy = StatefulPolicy()
    settings = Cage2Settings(red="sleep", horizons=(2,))
    step_rewards(policy, settings, episodes=5, seed=0, batch=3)
    assert policy.resets == (3, 2)


def test_an_unknown_policy_raises_with_a_suggestion():
    with pytest.raises(SettingsError, match="did you mean reactive"):
        make_policy("reactiv")


def test_random_blue_is_uniform_over_the_actions():
    policy = make_policy("random", seed=3)
    bits = {"bits": np.zeros((2000, 52), np.uint8)}
    counts = sum(np.bincount(policy(bits), minlength=145) for _ in range(50))
    assert len(counts) == 145
    assert np.abs(counts / counts.sum() * 145 - 1).max() < 0.2


def test_verification_without_files_does_not_pass():
    assert not verify([]).passed
    assert dataclasses.is_dataclass(verify([]))


def test_recordings_of_the_raw_observation_are_compared_as_the_channel_of_exploits(tmp_path):
    raw = next(path for path in TRACES if path.name == "traces_raw.npz")
    with np.load(raw) as file:
        arrays = {name: file[name] for name in file.files}
    episode, step, host, port = np.argwhere(arrays["raw_ports"] == 11)[0]
    arrays["raw_ports"][episode, step, host, port] = 10
    np.savez(tmp_path / "changed.npz", **arrays)
    result = verify([tmp_path / "changed.npz"])
    assert not result.passed
    assert list(result.first_difference.fields) == ["exploits"]
    assert (result.first_difference.episode, result.first_difference.step) == (episode, step)
    arrays["raw_shell"] = arrays["raw_shell"][:, :50]
    np.savez(tmp_path / "short.npz", **arrays)
    with pytest.raises(TraceError, match="raw_shell has shape"):
        verify([tmp_path / "short.npz"])
