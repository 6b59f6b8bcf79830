"""The adapter: other people's envs as a world, with their mistakes caught at the door."""

import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import foreign_envs as foreign
from hundredfold.core import streams
from hundredfold.core.batch import copies
from hundredfold.core.boxes import spread_over
from hundredfold.core.errors import CheckpointError, EnvError, SettingsError
from hundredfold.worlds.cartpole import CartPole
from hundredfold.worlds.gymnasium_factory import GymnasiumFactory, GymnasiumSettings
from hundredfold.worlds.gymnasium_world import GymnasiumWorld
from playing import assert_same_story, play_world, steady_actions

SEED = 5


def world_of(make_env, num_envs=4):
    return GymnasiumWorld(np.arange(num_envs), make_env)


def by_id(env_id, num_envs=1, **kwargs):
    pairs = tuple(f"{key}={value}" for key, value in kwargs.items())
    return GymnasiumFactory(env_id, GymnasiumSettings(env_kwargs=pairs).keywords)(
        np.arange(num_envs)
    )


# --- what the envs say is what the world says


def plain_tale(env, env_id, actions):
    """What one env says, played the way Gymnasium's own examples do it."""

    def begin(episode):
        seed = int(streams.stream_keys(SEED, env_id, episode)) >> 33
        return env.reset(seed=seed)[0]

    episode, told = 0, [(begin(0), 0.0, False, False, None)]
    for action in actions:
        seen, reward, over, cut, _ = env.step(action)
        last = seen if over or cut else None
        if over or cut:
            episode += 1
            seen = begin(episode)
        told.append((seen, reward, over, cut, last))
    return told


PLAYED = {
    "CartPole-v1": partial(gymnasium.make, "CartPole-v1"),
    "FrozenLake-v1": partial(gymnasium.make, "FrozenLake-v1"),
    "Taxi-v3": partial(gymnasium.make, "Taxi-v3", max_episode_steps=20),
    "Dice": foreign.Dice,
    "SeesNumber": foreign.SeesNumber,
    "SeesParts": foreign.SeesParts,
    "SeesBits": foreign.SeesBits,
    "SeesPicture": foreign.SeesPicture,
    "SeesEverything": foreign.SeesEverything,
    "SeesItsReward": foreign.SeesItsReward,
    "MaskInObservation": foreign.MaskInObservation,
    "MaskInInfo": foreign.MaskInInfo,
    "MaskFromMethod": foreign.MaskFromMethod,
    "SeveralParts": foreign.SeveralParts,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", PLAYED)
def test_the_world_says_what_the_envs_say(name):
    world, steps = world_of(PLAYED[name], 3), 45
    batch = world.reset(SEED)
    story, played = [copies(batch.arrays())], []
    for step in range(steps):
        actions = steady_actions(batch, world.spec, np.full(3, step))
        batch = world.step(actions)
        story.append(copies(batch.arrays()))
        played.append(actions.tolist())
    assert any(said["terminated"].any() or said["truncated"].any() for said in story)
    for env_id in range(3):
        actions = [np.array(row[env_id]) for row in played]
        actions = [int(action) if action.ndim == 0 else action for action in actions]
        tale = plain_tale(PLAYED[name](), env_id, actions)
        for said, expected in zip(story, tale, strict=True):
            assert_says(said, env_id, expected)


def assert_says(said, row, expected):
    seen, reward, over, cut, last = expected
    assert (said["reward"][row], said["terminated"][row], said["truncated"][row]) == (
        reward,
        over,
        cut,
    )
    for group, wanted in (("observation", seen), ("final_observation", last)):
        if wanted is None:
            continue
        parts = wanted if isinstance(wanted, dict) else {"observation": wanted}
        for key in parts.keys() - {"action_mask"}:
            assert_array_equal(said[f"{group}/{key}"][row], parts[key])


def test_infos_are_handed_on_with_the_last_one_of_an_ended_episode():
    world = world_of(foreign.Dice, 2)
    batch = world.reset(SEED)
    assert [info.keys() for info in batch.foreign_infos] == [{"total"}, {"total"}]
    for _ in range(20):
        batch = world.step(np.zeros(2, np.int64))
        for row, info in enumerate(batch.foreign_infos):
            assert info["total"] == batch.observation["observation"][row, 1]
            assert ("final_info" in info) == batch.ended[row]
            if batch.ended[row]:
                last = batch.final_observation["observation"][row, 1]
                assert info["final_info"]["total"] == last


# --- spaces


@pytest.mark.parametrize(
    ("make_env", "shape", "dtype", "categories"),
    [
        (foreign.Dice, (2,), "float32", None),
        (foreign.SeesNumber, (), "int64", (7,)),
        (foreign.SeesParts, (2, 2), "int64", (4, 2, 9, 3)),
        (foreign.SeesBits, (2, 3), "int8", None),
        (foreign.SeesPicture, (3, 2, 1), "uint8", None),
    ],
)
def test_an_observation_space_becomes_one_array(make_env, shape, dtype, categories):
    spec = world_of(make_env, 1).spec
    (array,) = spec.observation.values()
    assert list(spec.observation) == ["observation"]
    assert (array.shape, array.dtype, array.categories) == (shape, dtype, categories)


def test_a_dict_observation_becomes_an_array_per_part():
    arrays = world_of(foreign.SeesEverything, 1).spec.observation
    assert {name: (array.shape, array.dtype) for name, array in arrays.items()} == {
        "bits": ((3,), "int8"),
        "height": ((), "float64"),
        "number": ((), "int64"),
        "parts": ((2,), "int64"),
    }
    assert arrays["parts"].categories == (4, 9)
    assert (arrays["height"].low, arrays["height"].high) == (-1.0, 1.0)


def test_bounds_are_one_number_where_all_entries_share_it():
    picture = world_of(foreign.SeesPicture, 1).spec.observation["observation"]
    assert (picture.low, picture.high) == (0.0, 255.0)
    cart = by_id("CartPole-v1").spec.observation["observation"]
    assert len(cart.high) == 4
    assert cart.high[1] == np.inf
    assert cart.low[0] == pytest.approx(-4.8)


@pytest.mark.parametrize(
    ("make_env", "choices", "action_shape"),
    [
        (foreign.Dice, (3,), ()),
        (foreign.ShiftedActions, (3,), ()),
        (foreign.SeveralParts, (3, 2), (2,)),
        (foreign.ShiftedParts, (2, 3), (2,)),
    ],
)
def test_an_action_space_becomes_choices(make_env, choices, action_shape):
    spec = world_of(make_env, 1).spec
    assert (spec.choices, spec.action_shape) == (choices, action_shape)


def test_actions_are_counted_from_zero_here_and_from_its_start_in_the_env():
    world = world_of(foreign.ShiftedActions, 3)
    world.reset(SEED)
    assert world.step(np.array([0, 1, 2])).reward.tolist() == [5.0, 6.0, 7.0]


def test_so_are_the_parts_of_an_action():
    world = world_of(foreign.ShiftedParts, 2)
    world.reset(SEED)
    assert world.step(np.array([[0, 0], [1, 2]])).reward.tolist() == [10 - 1, 20 + 1]


@pytest.mark.parametrize(
    ("make_env", "shape", "low", "high"),
    [
        (foreign.Pushes, (2,), -1.0, 1.0),
        (foreign.PushesOnce, (), 0.0, 10.0),
        (foreign.PushesUnevenly, (2, 2), (-0.1, 2.0, -np.inf, -np.inf), (0.1, np.inf, -3, np.inf)),
    ],
)
def test_a_box_of_actions_keeps_its_shape_and_bounds(make_env, shape, low, high):
    spec = world_of(make_env, 1).spec
    assert (spec.choices, spec.action_shape, spec.action_dtype) == ((), shape, "float32")
    assert (spec.action_box.low, spec.action_box.high) == (low, high)


@pytest.mark.parametrize("make_env", [foreign.Pushes, foreign.PushesOnce, foreign.PushesUnevenly])
def test_actions_of_a_box_arrive_as_its_space_has_them(make_env):
    world = world_of(make_env, 3)
    box = world.spec.action_box
    actions = spread_over(box, np.array([[0.0, 0.5, 1.0, 0.25]] * 3)[:, : box.size])
    world.reset(SEED)
    # The envs refuse what their own space does not contain, doubles rounded to floats included.
    batch = world.step(actions)
    assert_array_equal(batch.reward, actions.reshape(3, -1).astype(np.float64).sum(axis=1))


@pytest.mark.parametrize(
    ("make_env", "named"),
    [
        (foreign.PushesWholeNumbers, ["action space Box", "of floats", "Wrap the env"]),
        (foreign.PushesUnderMask, ["PushesUnderMask", "only choices can be masked"]),
        (foreign.ActsOnDict, ["ActsOnDict", "action space Dict", "Discrete", "Wrap the env"]),
        (foreign.ActsOnTuple, ["action space Tuple", "Wrap the env"]),
        (foreign.ActsOnGrid, ["ActsOnGrid", "action space MultiDiscrete", "flat"]),
        (foreign.ActsOnBits, ["action space MultiBinary", "Wrap the env"]),
        (foreign.SeesNestedDict, ["'inner'", "Dict('deep'", "FlattenObservation"]),
        (foreign.SeesTuple, ["Tuple", "FlattenObservation"]),
        (foreign.SeesText, ["Text", "wrapper"]),
        (foreign.SeesShiftedNumber, ["Discrete(3, start=1)", "from 0"]),
        (foreign.SeesShiftedParts, ["MultiDiscrete", "from 0"]),
        (foreign.SeesOnlyMask, ["SeesOnlyMask", "nothing but its action_mask"]),
    ],
)
def test_a_space_that_cannot_be_read_is_refused_with_advice(make_env, named):
    with pytest.raises(SettingsError) as refusal:
        world_of(make_env)
    for word in named:
        assert word in str(refusal.value)


def test_the_advice_works():
    flat = partial(gymnasium.wrappers.FlattenObservation, foreign.SeesNestedDict())
    assert world_of(flat, 1).spec.observation["observation"].shape == (3,)


# --- masks

MASKED = [foreign.MaskInObservation, foreign.MaskInInfo, foreign.MaskFromMethod]


@pytest.mark.parametrize("make_env", MASKED)
def test_masks_are_found_wherever_they_are(make_env):
    world = world_of(make_env)
    assert world.spec.has_mask
    assert "action_mask" not in world.spec.observation
    batch = world.reset(SEED)
    for step in range(30):
        (total,) = (array[:, 1] for array in batch.observation.values())
        allowed = (np.arange(3) + total[:, None]) % 3 != 0
        assert_array_equal(batch.mask, allowed)
        batch = world.step(steady_actions(batch, world.spec, np.full(4, step)))


def test_all_three_sources_tell_one_story():
    stories = [play_world(world_of(make_env), SEED, 40) for make_env in MASKED]
    for story in stories[1:]:
        assert_array_equal(story["mask"], stories[0]["mask"])
        assert_array_equal(story["reward"], stories[0]["reward"])


def test_a_method_behind_a_wrapper_is_found():
    world = world_of(lambda: gymnasium.wrappers.TimeLimit(foreign.MaskFromMethod(), 4))
    assert world.spec.has_mask
    assert not world.reset(SEED).mask.all()


def test_an_env_without_masks_has_none():
    assert world_of(foreign.Dice).reset(SEED).mask is None


def test_a_mask_of_several_parts_lies_side_by_side():
    world = world_of(foreign.SeveralParts)
    total = world.reset(SEED).observation["observation"][:, 1]
    assert_array_equal(world.out.mask[:, 1], total % 2 == 0)
    assert_array_equal(world.out.mask[:, 3], total % 3 != 0)


# --- rude envs


def play_beside(rude, good=foreign.Rude, number=2, num_envs=4):
    """Play envs of which one is rude, until something happens."""
    play_on(world_of(foreign.OneRude(rude, number, good), num_envs))


def play_on(world):
    batch = world.reset(SEED)
    for step in range(6):
        batch = world.step(steady_actions(batch, world.spec, np.full(len(batch), step)))


RUDE = {
    "nan": (foreign.NanObservation, foreign.Rude, ["nan", "'observation'[1]", "finite"]),
    "inf": (foreign.InfReward, foreign.Rude, ["inf", "'reward'", "finite"]),
    "shape": (foreign.WrongShape, foreign.Rude, ["(3,)", "(2,)", "observation_space"]),
    "raises": (
        foreign.RaisesInStep,
        foreign.Rude,
        ["step()", "ZeroDivisionError", "the die fell off the table"],
    ),
    "old": (foreign.OldStep, foreign.Rude, ["step()", "ValueError"]),
    "forbids": (
        foreign.ForbidsEverything,
        foreign.PoliteWithMask,
        ["forbids all 3 actions", "at least one"],
    ),
    "forgets": (foreign.ForgetsMask, foreign.PoliteWithMask, ["mask None", "3 bools"]),
    "omits": (
        foreign.ForgetsSeenMask,
        foreign.PoliteWithSeenMask,
        ["gave the action mask None", "3 bools"],
    ),
    "short": (foreign.ShortMask, foreign.PoliteWithMask, ["action mask", "3 bools"]),
}


@pytest.mark.parametrize("number", [0, 2, 3])
@pytest.mark.parametrize("case", RUDE)
def test_a_rude_env_is_named_with_its_step(case, number):
    rude, good, words = RUDE[case]
    with pytest.raises(EnvError) as refusal:
        play_beside(rude, good, number)
    assert f"env {number} of " in str(refusal.value)
    assert "(step 3 of its episode 0)" in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


def test_the_envs_own_number_is_named_not_its_row():
    world = GymnasiumWorld(np.arange(8, 12), foreign.OneRude(foreign.NanObservation, 2))
    with pytest.raises(EnvError, match=r"env 10 of .*step 3"):
        play_on(world)


def test_a_part_whose_actions_are_all_forbidden_is_refused():
    world = world_of(partial(foreign.ForbidsWholePart, only_seed=seed_of(1)), 2)
    with pytest.raises(EnvError, match=r"env 1 of .*step 3.*forbids all 2 actions"):
        play_on(world)


def seed_of(env_id, episode=0):
    return int(streams.stream_keys(SEED, env_id, episode)) >> 33


def test_an_env_that_raises_between_episodes_is_named_with_the_episode():
    with pytest.raises(
        EnvError, match=r"env 2 of .*\(step 0 of its episode 1\) raised in reset\(\): OSError"
    ):
        play_beside(foreign.RaisesInNextReset)


def test_the_envs_own_error_is_the_cause():
    with pytest.raises(EnvError) as refusal:
        play_beside(foreign.RaisesInStep)
    assert isinstance(refusal.value.__cause__, ZeroDivisionError)


def test_polite_envs_are_left_alone():
    for good in (foreign.Rude, foreign.PoliteWithMask, foreign.PoliteDict, foreign.PoliteNumber):
        play_beside(good, good)


def test_a_wrong_shape_in_the_last_observation_is_refused():
    with pytest.raises(EnvError, match=r"env 2 of .*step 3 of its episode 0\).*\(3,\)"):
        play_beside(foreign.WrongLastShape)


def test_a_nan_in_the_last_observation_is_refused():
    with pytest.raises(EnvError, match=r"env 2 of .*step 3 of its episode 0\).*nan"):
        play_beside(foreign.NanInLastObservation)


def test_a_bad_last_reward_is_named_with_the_step_that_gave_it():
    with pytest.raises(EnvError, match=r"env 2 of .*step 3 of its episode 0\).*inf"):
        play_beside(foreign.InfLastReward)


def test_an_env_that_never_starts_is_named():
    with pytest.raises(EnvError, match=r"env 0 of RaisesInFirstReset .*reset\(\): OSError"):
        world_of(foreign.RaisesInFirstReset).reset(SEED)


@pytest.mark.parametrize(
    ("rude", "good", "words"),
    [
        (foreign.MaskRaises, foreign.PoliteWithMaskMethod, "nobody knows what is allowed"),
        (foreign.ForgetsPart, foreign.PoliteDict, "total"),
        (foreign.ForgetsDict, foreign.PoliteDict, "turn"),
        (foreign.NumberOutside, foreign.PoliteNumber, "9"),
    ],
)
def test_other_rudeness_is_named_too(rude, good, words):
    with pytest.raises(EnvError, match=rf"env 2 of .*step 3.*{words}"):
        play_beside(rude, good)


def test_an_env_that_remembers_its_resets_tells_the_same_story_in_any_company():
    both = play_world(world_of(foreign.RemembersResets, 2), SEED, 20)
    alone = play_world(GymnasiumWorld(np.array([1]), foreign.RemembersResets), SEED, 20)
    assert_same_story(alone, both.of([1]))


# --- snapshots


@pytest.mark.filterwarnings("ignore:.*truncated")
def test_a_snapshot_of_our_cartpole_is_none_of_gymnasiums():
    ours = CartPole(np.arange(3))
    ours.reset(SEED)
    with pytest.raises(CheckpointError):
        by_id("CartPole-v1", 3).restore(ours.state())


def test_a_restore_warns_once_and_names_the_env():
    world = by_id("CartPole-v1", 5)
    world.reset(SEED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        world.restore(world.state())
    assert [str(one.message).split()[0] for one in caught] == ["CartPole-v1"]


# --- making envs


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("is_slippery=false", {"is_slippery": False}),
        ("size=8", {"size": 8}),
        ("rate=0.5", {"rate": 0.5}),
        ("map_name=8x8", {"map_name": "8x8"}),
        ('map_name="8x8"', {"map_name": "8x8"}),
        ("desc=[1, 2]", {"desc": [1, 2]}),
        ("nothing=null", {"nothing": None}),
        ("text=", {"text": ""}),
        ("formula=a=b", {"formula": "a=b"}),
    ],
)
def test_arguments_are_json_where_they_parse_and_text_otherwise(pair, expected):
    assert GymnasiumSettings(env_kwargs=(pair,)).keywords == expected


@pytest.mark.parametrize("pair", ["is_slippery", "=3", "two words=3", "8x8=true", ""])
def test_an_argument_without_name_or_value_is_refused(pair):
    with pytest.raises(SettingsError, match="key=value"):
        GymnasiumSettings(env_kwargs=(pair,))


def test_arguments_reach_the_env():
    assert by_id("FrozenLake-v1").spec.observation["observation"].categories == (16,)
    large = by_id("FrozenLake-v1", map_name="8x8", is_slippery="false")
    assert large.spec.observation["observation"].categories == (64,)
    large.reset(SEED)
    assert large.step(np.array([2])).observation["observation"].tolist() == [1]


def test_an_argument_the_env_does_not_know_is_refused():
    with pytest.raises(SettingsError, match=r"FrozenLake-v1.*'slippery'"):
        by_id("FrozenLake-v1", slippery="false")


def test_a_value_the_env_does_not_know_is_refused():
    with pytest.raises(SettingsError, match=r"FrozenLake-v1.*9x9"):
        by_id("FrozenLake-v1", map_name="9x9")


def test_a_module_that_cannot_be_imported_is_refused():
    with pytest.raises(SettingsError, match="no_such_module"):
        by_id("no_such_module:Env-v0")


def test_a_world_is_named_after_its_id_or_its_class():
    assert by_id("FrozenLake-v1").spec.name == "FrozenLake-v1"
    assert world_of(partial(gymnasium.make, "CartPole-v1"), 1).spec.name == "CartPole-v1"
    assert world_of(lambda: gymnasium.wrappers.TimeLimit(foreign.Dice(), 3), 1).spec.name == "Dice"


def test_closing_the_world_closes_every_env(tmp_path):
    world = world_of(partial(foreign.LeavesNote, tmp_path), 3)
    assert not list(tmp_path.iterdir())
    world.close()
    assert len(list(tmp_path.iterdir())) == 3
