"""The acceptance model beside a training: cadence, epsilon, background refits, snapshots."""

import traceback
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load, save

from helpers.asking import as_batch, asked_calls
from helpers.training_runs import run_python
from hundredfold.core import rng
from hundredfold.core.errors import CheckpointError, SettingsError, TrainingError
from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModelSettings, make_belief_model
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.offers import NO_CHANGE
from hundredfold.envs.dvrp.settings import DvrpSettings

ENV = DvrpSettings(num_customers=10, population_size=20, tolerances="types")
NUM_ENVS = 8
STEPS = NUM_ENVS * ENV.num_customers


def new_model(num_epochs=6, env=ENV, **changes):
    settings = AcceptanceModelSettings(**{"embedding_epochs": 2, **changes})
    return make_belief_model(settings, env, num_envs=NUM_ENVS, num_epochs=num_epochs, seed=3)


def epoch_of(beliefs, number, env=ENV):
    """One day of every env, call by call; returns what the acceptance model tells of it."""
    calls = asked_calls(env, NUM_ENVS, seed=number)
    for call in range(env.num_customers):
        rows = np.arange(NUM_ENVS) * env.num_customers + call
        beliefs.observe(as_batch(*(array[rows] for array in calls)))
    return beliefs.update()


def assert_same_knowledge(one, other):
    for exploring in (True, False):
        told, retold = (
            one.params(exploring=exploring),
            other.params(exploring=exploring),
        )
        for name, array in told.items():
            assert_array_equal(retold[name], array, strict=True)


def test_epsilon_fades_from_the_first_epoch_to_the_last():
    beliefs = new_model(num_epochs=5)
    told = [float(beliefs.params(exploring=True)["epsilon"])]
    used = []
    for number in range(5):
        used.append(epoch_of(beliefs, number)["epsilon"])
        told.append(float(beliefs.params(exploring=True)["epsilon"]))
    assert_allclose(used, (0.2, 0.15, 0.1, 0.05, 0.0), atol=1e-12)
    assert_allclose(told, (*used, 0.0), atol=1e-7)
    assert beliefs.params(exploring=False)["epsilon"] == 0
    assert new_model(num_epochs=1).epsilon == 0.2


def test_knowledge_has_the_shapes_that_envs_want():
    beliefs = new_model()
    for exploring in (True, False):
        told = beliefs.params(exploring=exploring)
        assert {name: (array.shape, array.dtype.name) for name, array in told.items()} == {
            "type_probabilities": ((40, 4), "float32"),
            "response_counts": ((40,), "float32"),
            "accept_given_type": ((4, 10, 16), "float32"),
            "epsilon": ((), "float32"),
            "sample_types": ((), "bool"),
        }
        assert told["sample_types"] == exploring


def test_it_listens_and_speaks_to_the_env_itself():
    settings = DvrpSettings(num_customers=4, population_size=6, lns_iterations=0)
    env = Dvrp(np.arange(3), settings)
    beliefs = make_belief_model(
        AcceptanceModelSettings(), settings, num_envs=3, num_epochs=1, seed=0
    )
    env.reset(1)
    offers = np.array([0, 15, NO_CHANGE])
    for _ in range(4):
        beliefs.observe(env.step(offers))
        env.set_shared_params(beliefs.params(exploring=True))
    rows, day = beliefs.answers.rows(), env.draw.draw(rng.stream_keys(1, np.arange(3), 0))
    assert_array_equal(rows.person.reshape(4, 2).T, day[0][:2])
    assert_array_equal(rows.purpose.reshape(4, 2).T, env.population.trips.purpose[day[1][:2]])
    accepts = env.population.accepts[day[1][:2], offers[:2, None]]
    assert_array_equal(rows.accepted.reshape(4, 2).T, accepts)


def test_it_counts_real_answers_of_everybody():
    beliefs = new_model()
    epoch_of(beliefs, 0)
    person, _, offer, _ = asked_calls(ENV, NUM_ENVS, seed=0)
    real = np.bincount(person[offer != NO_CHANGE], minlength=40)
    assert_array_equal(beliefs.params(exploring=True)["response_counts"], real)
    assert len(beliefs.answers) == real.sum() < STEPS


def test_ten_days_of_every_env_lie_between_refits_by_default():
    beliefs = new_model(num_epochs=25)
    reports = [epoch_of(beliefs, number) for number in range(21)]
    refits = [number for number, report in enumerate(reports) if "acceptance/loss" in report]
    assert refits == [9, 19]
    assert reports[20]["acceptance/refits"] == 2


def test_refits_come_at_the_end_of_the_epoch_that_reaches_the_interval():
    beliefs = new_model(acceptance_refit_interval=STEPS + 1)
    learned = ["acceptance/loss" in epoch_of(beliefs, number) for number in range(6)]
    assert learned == [False, True, False, True, False, True]


def test_a_refit_tells_how_well_it_went():
    beliefs = new_model(acceptance_refit_interval=STEPS, num_epochs=12)
    for number in range(11):
        report = epoch_of(beliefs, number)
    assert report["type_accuracy"] == report["acceptance/bayes_optimal_accuracy"] == 1.0
    assert report["acceptance/log_loss"] < 0.01
    assert report["acceptance/brier"] < 0.01
    shares = [report[f"acceptance/type_share_{name}"] for name in ("late", "early", "none", "both")]
    truth = np.bincount(beliefs.truth.types[:20], minlength=4) / 20
    assert_allclose(shares, truth, atol=0.01)


def test_a_model_that_waits_is_asked_again_after_the_next_epoch():
    env = DvrpSettings(num_customers=1, population_size=20)
    beliefs = new_model(env=env, acceptance_model="embedding", acceptance_refit_interval=1)
    refits = [epoch_of(beliefs, number, env)["acceptance/refits"] for number in range(6)]
    assert refits[0] == 0
    assert refits[-1] > 0


def test_the_truth_goes_into_metrics_and_nowhere_else():
    one = new_model(acceptance_refit_interval=STEPS)
    other = new_model(acceptance_refit_interval=STEPS)
    other.truth = None
    for number in range(3):
        report = epoch_of(other, number)
        epoch_of(one, number)
    assert "type_accuracy" not in report
    assert_same_knowledge(one, other)


@pytest.mark.parametrize("model", ["bayes", "embedding"])
@pytest.mark.parametrize("place", ["inline", "background"])
def test_a_resumed_acceptance_model_goes_on_bit_for_bit(model, place):
    options = {
        "acceptance_model": model,
        "acceptance_refit": place,
        "acceptance_refit_interval": STEPS,
    }
    whole = new_model(acceptance_buffer_size=200, **options)
    reports = []
    for number in range(6):
        if number == 3:
            saved = load(save(whole.state()))
        reports.append(epoch_of(whole, number))
    resumed = new_model(acceptance_buffer_size=200, **options)
    epoch_of(resumed, 77)
    resumed.restore(saved)
    assert (resumed.pending is not None) == (place == "background")
    for number in range(3, 6):
        assert epoch_of(resumed, number) == reports[number]
        if number == 3:
            assert resumed.refits == (4 if place == "inline" else 3)
    assert_same_knowledge(whole, resumed)
    last, again = whole.state(), resumed.state()
    assert last.keys() == again.keys()
    for name, array in last.items():
        assert_array_equal(again[name], array, strict=True)


@pytest.mark.parametrize("model", ["bayes", "embedding"])
def test_a_background_refit_is_heard_of_one_epoch_later(model):
    options = {"acceptance_model": model, "acceptance_refit_interval": STEPS, "num_epochs": 9}
    inline = new_model(**options)
    beside = new_model(**options, acceptance_refit="background")
    before = beside.params(exploring=False)["type_probabilities"]
    told = []
    for number in range(4):
        epoch_of(inline, number)
        epoch_of(beside, number)
        beside.pending.thread.join()  # being ready early changes nothing
        told.append(
            [beliefs.params(exploring=False)["type_probabilities"] for beliefs in (inline, beside)]
        )
    beside.close()
    assert_array_equal(told[0][1], before)
    for earlier, later in pairwise(told):
        assert_array_equal(later[1], earlier[0])


def test_nothing_is_left_running_after_the_last_epoch():
    beliefs = new_model(
        acceptance_refit="background", acceptance_refit_interval=STEPS, num_epochs=3
    )
    reports = [epoch_of(beliefs, number) for number in range(3)]
    assert beliefs.pending is None
    assert [report["acceptance/refits"] for report in reports] == [0, 1, 3]


def test_an_error_in_the_background_comes_home_with_its_traceback():
    beliefs = new_model(acceptance_refit="background", acceptance_refit_interval=STEPS)
    far_out = as_batch(np.array([39]), np.array([9]), np.array([99]), np.array([True]))
    beliefs.observe(far_out)  # nobody has such an offer to make
    epoch_of(beliefs, 0)
    with pytest.raises(TrainingError, match=r"background refit of \d+ answers") as caught:
        epoch_of(beliefs, 1)
    told = "".join(traceback.format_exception(caught.value))
    assert "in counts" in told, "the place where it happened"
    beliefs.close()


def test_closing_ends_a_background_refit():
    options = {"acceptance_model": "embedding", "acceptance_refit": "background"}
    beliefs = new_model(acceptance_refit_interval=STEPS, **options, embedding_epochs=100_000)
    epoch_of(beliefs, 0)
    thread = beliefs.pending.thread
    assert thread.is_alive()
    beliefs.close()
    assert not thread.is_alive()
    beliefs.close()


def test_a_snapshot_of_another_population_is_refused():
    other = new_model(env=DvrpSettings(num_customers=10, population_size=30))
    with pytest.raises(CheckpointError, match="knows 60 people while the population has 40"):
        new_model().restore(other.state())


def test_without_a_acceptance_model_there_is_none():
    assert new_model(acceptance_model="none") is None


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"acceptance_model": "baye"}, "did you mean bayes"),
        ({"acceptance_refit": "later"}, "known names: background, inline"),
        ({"acceptance_buffer_size": 0}, "acceptance_buffer_size must be at least 1, got 0"),
        ({"acceptance_refit_interval": -1}, "acceptance_refit_interval must be at least 0"),
        ({"embedding_epochs": 0}, "embedding_epochs must be at least 1"),
        ({"epsilon_start": 1.5}, "epsilon_start is a chance"),
        ({"epsilon_end": float("nan")}, "epsilon_end is a chance"),
    ],
)
def test_wrong_settings_get_a_hint(wrong, hint):
    with pytest.raises(SettingsError, match=hint):
        AcceptanceModelSettings(**wrong)


def test_torch_is_imported_only_for_the_network():
    done = run_python(
        "import sys\n"
        "from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModelSettings\n"
        "from hundredfold.envs.dvrp.acceptance.belief_model import make_belief_model\n"
        "from hundredfold.envs.dvrp.settings import DvrpSettings\n"
        "for name in ('bayes', 'embedding'):\n"
        "    settings = AcceptanceModelSettings(acceptance_model=name)\n"
        "    make_belief_model(settings, DvrpSettings(), num_envs=1, num_epochs=1, seed=0)\n"
        "    print('torch' in sys.modules)\n",
        expect=0,
    )
    assert done.stdout.split() == ["False", "True"]
