"""AcceptanceModel: refit schedule, epsilon, background refits, checkpoints."""

import traceback
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load, save

from helpers.offers import NO_CHANGE
from helpers.responses import response_batch, simulate_calls
from helpers.training_runs import run_python
from hundredfold.core import rng
from hundredfold.core.errors import CheckpointError, SettingsError, TrainingError
from hundredfold.envs.dvrp.acceptance.belief_model import AcceptanceModelSettings, make_belief_model
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.settings import DvrpSettings

ENV = DvrpSettings(num_customers=10, population_size=20, tolerances="types")
NUM_ENVS = 8
STEPS = NUM_ENVS * ENV.num_customers


def new_model(num_epochs=6, env=ENV, **changes):
    settings = AcceptanceModelSettings(**{"embedding_epochs": 2, **changes})
    return make_belief_model(settings, env, num_envs=NUM_ENVS, num_epochs=num_epochs, seed=3)


def run_epoch(beliefs, number, env=ENV):
    """One day of every env, call by call; returns the epoch's metrics."""
    calls = simulate_calls(env, NUM_ENVS, seed=number)
    for call in range(env.num_customers):
        rows = np.arange(NUM_ENVS) * env.num_customers + call
        beliefs.observe(response_batch(*(array[rows] for array in calls)))
    return beliefs.update()


def assert_same_params(one, other):
    for exploring in (True, False):
        expected, found = (model.params(exploring=exploring) for model in (one, other))
        for name, array in expected.items():
            assert_array_equal(found[name], array, strict=True)


def test_epsilon_is_annealed_from_the_first_epoch_to_the_last():
    beliefs = new_model(num_epochs=5)
    exported = [float(beliefs.params(exploring=True)["epsilon"])]
    reported = []
    for number in range(5):
        reported.append(run_epoch(beliefs, number)["epsilon"])
        exported.append(float(beliefs.params(exploring=True)["epsilon"]))
    assert_allclose(reported, (0.2, 0.15, 0.1, 0.05, 0.0), atol=1e-12)
    assert_allclose(exported, (*reported, 0.0), atol=1e-7)
    assert beliefs.params(exploring=False)["epsilon"] == 0
    assert new_model(num_epochs=1).epsilon == 0.2


def test_params_have_the_shapes_that_envs_expect():
    beliefs = new_model()
    for exploring in (True, False):
        params = beliefs.params(exploring=exploring)
        assert {name: (array.shape, array.dtype.name) for name, array in params.items()} == {
            "type_probabilities": ((40, 4), "float32"),
            "response_counts": ((40,), "float32"),
            "accept_given_type": ((4, 10, 16), "float32"),
            "epsilon": ((), "float32"),
            "sample_types": ((), "bool"),
            "trip_accept_rates": ((2000, 16), "float16"),
        }
        assert params["sample_types"] == exploring


@pytest.mark.parametrize("changes", [{"trip_memory": False}, {"acceptance_model": "embedding"}])
def test_models_that_remember_no_trips_export_none(changes):
    assert "trip_accept_rates" not in new_model(**changes).params(exploring=True)


def test_remembered_trips_are_exported_after_a_refit():
    beliefs = new_model(acceptance_refit_interval=STEPS)
    assert np.isnan(beliefs.params(exploring=True)["trip_accept_rates"]).all()
    run_epoch(beliefs, 0)
    exported = beliefs.params(exploring=True)["trip_accept_rates"]
    remembered = np.unique(beliefs.responses.rows().trip)
    assert_array_equal(np.flatnonzero(~np.isnan(exported[:, 0])), remembered)
    assert_allclose(exported[remembered], beliefs.model.trip_accept_rates[remembered], atol=5e-4)


def test_responses_are_scored_before_they_are_learned_from():
    beliefs = new_model(acceptance_refit_interval=STEPS, num_epochs=12)
    reports = [run_epoch(beliefs, number) for number in range(11)]
    _, _, _, offer, accepted = simulate_calls(ENV, NUM_ENVS, seed=10)
    made = offer != NO_CHANGE
    assert reports[10]["acceptance/accepted_rate"] == pytest.approx(accepted[made].mean())
    assert reports[0]["acceptance/offer_brier_score"] > 0.1
    assert reports[10]["acceptance/offer_brier_score"] < 0.01
    assert reports[10]["acceptance/offer_log_loss"] < 0.05
    assert reports[10]["acceptance/predicted_rate"] == pytest.approx(accepted[made].mean(), abs=0.02)


@pytest.mark.parametrize("accepted", [True, False])
def test_a_single_response_is_scored_and_none_are_not(accepted):
    beliefs = new_model()
    customer, trip, purpose, offer, _ = (array[:1] for array in simulate_calls(ENV, NUM_ENVS, seed=0))
    assert offer != NO_CHANGE
    beliefs.observe(response_batch(customer, trip, purpose, offer, np.array([accepted])))
    assert beliefs.update()["acceptance/accepted_rate"] == accepted
    assert "acceptance/accepted_rate" not in beliefs.update()


def test_it_stores_the_responses_of_a_real_env():
    settings = DvrpSettings(num_customers=4, population_size=6, lns_iterations=0)
    env = Dvrp(np.arange(3), settings)
    beliefs = make_belief_model(AcceptanceModelSettings(), settings, num_envs=3, num_epochs=1, seed=0)
    env.reset(1)
    offers = np.array([0, 15, NO_CHANGE])
    for _ in range(4):
        beliefs.observe(env.step(offers))
        env.set_shared_params(beliefs.params(exploring=True))
    rows, day = beliefs.responses.rows(), env.demand.sample(rng.stream_keys(1, np.arange(3), 0))
    assert_array_equal(rows.customer.reshape(4, 2).T, day[0][:2])
    assert_array_equal(rows.trip.reshape(4, 2).T, day[1][:2])
    assert_array_equal(rows.purpose.reshape(4, 2).T, env.population.trips.purpose[day[1][:2]])
    accepts = env.population.accepts[day[1][:2], offers[:2, None]]
    assert_array_equal(rows.accepted.reshape(4, 2).T, accepts)


def test_response_counts_leave_out_offer_12():
    beliefs = new_model()
    run_epoch(beliefs, 0)
    customer, _, _, offer, _ = simulate_calls(ENV, NUM_ENVS, seed=0)
    real = np.bincount(customer[offer != NO_CHANGE], minlength=40)
    assert_array_equal(beliefs.params(exploring=True)["response_counts"], real)
    assert len(beliefs.responses) == real.sum() < STEPS


def test_by_default_a_refit_comes_every_ten_days_of_all_envs():
    beliefs = new_model(num_epochs=25)
    epochs = [run_epoch(beliefs, number) for number in range(21)]
    refits = [number for number, report in enumerate(epochs) if "acceptance/loss" in report]
    assert refits == [9, 19]
    assert epochs[20]["acceptance/refits"] == 2


def test_refits_end_the_epoch_that_reaches_the_interval():
    beliefs = new_model(acceptance_refit_interval=STEPS + 1)
    learned = ["acceptance/loss" in run_epoch(beliefs, number) for number in range(6)]
    assert learned == [False, True, False, True, False, True]


def test_refit_metrics_are_compared_with_the_truth():
    beliefs = new_model(acceptance_refit_interval=STEPS, num_epochs=12)
    for number in range(11):
        report = run_epoch(beliefs, number)
    assert report["type_accuracy"] == report["acceptance/bayes_optimal_accuracy"] == 1.0
    assert report["acceptance/log_loss"] < 0.01
    assert report["acceptance/brier_score"] < 0.01
    shares = [report[f"acceptance/type_share_{name}"] for name in ("late", "early", "none", "both")]
    truth = np.bincount(beliefs.truth.types[:20], minlength=4) / 20
    assert_allclose(shares, truth, atol=0.01)


def test_a_refit_without_enough_responses_is_tried_again_next_epoch():
    env = DvrpSettings(num_customers=1, population_size=20)
    beliefs = new_model(env=env, acceptance_model="embedding", acceptance_refit_interval=1)
    refits = [run_epoch(beliefs, number, env)["acceptance/refits"] for number in range(6)]
    assert refits[0] == 0
    assert refits[-1] > 0


def test_the_truth_is_used_for_metrics_only():
    one = new_model(acceptance_refit_interval=STEPS)
    other = new_model(acceptance_refit_interval=STEPS)
    other.truth = None
    for number in range(3):
        report = run_epoch(other, number)
        run_epoch(one, number)
    assert "type_accuracy" not in report
    assert_same_params(one, other)


@pytest.mark.parametrize("model", ["bayes", "embedding"])
@pytest.mark.parametrize("refit", ["inline", "background"])
def test_resume_is_bit_exact(model, refit):
    options = {"acceptance_model": model, "acceptance_refit": refit, "acceptance_refit_interval": STEPS}
    whole = new_model(acceptance_buffer_size=200, **options)
    reports = []
    for number in range(6):
        if number == 3:
            saved = load(save(whole.state()))
        reports.append(run_epoch(whole, number))
    resumed = new_model(acceptance_buffer_size=200, **options)
    run_epoch(resumed, 77)
    resumed.restore(saved)
    assert (resumed.pending is not None) == (refit == "background")
    for number in range(3, 6):
        assert run_epoch(resumed, number) == reports[number]
        if number == 3:
            assert resumed.refits == (4 if refit == "inline" else 3)
    assert_same_params(whole, resumed)
    last, again = whole.state(), resumed.state()
    assert last.keys() == again.keys()
    for name, array in last.items():
        assert_array_equal(again[name], array, strict=True)


@pytest.mark.parametrize("model", ["bayes", "embedding"])
def test_a_background_refit_is_adopted_one_epoch_later(model):
    options = {"acceptance_model": model, "acceptance_refit_interval": STEPS, "num_epochs": 9}
    inline = new_model(**options)
    background = new_model(**options, acceptance_refit="background")
    before = background.params(exploring=False)["type_probabilities"]
    exported = []
    for number in range(4):
        run_epoch(inline, number)
        run_epoch(background, number)
        background.pending.thread.join()  # finishing early changes nothing
        exported.append([beliefs.params(exploring=False)["type_probabilities"] for beliefs in (inline, background)])
    background.close()
    assert_array_equal(exported[0][1], before)
    for earlier, later in pairwise(exported):
        assert_array_equal(later[1], earlier[0])


def test_nothing_is_left_running_after_the_last_epoch():
    beliefs = new_model(acceptance_refit="background", acceptance_refit_interval=STEPS, num_epochs=3)
    epochs = [run_epoch(beliefs, number) for number in range(3)]
    assert beliefs.pending is None
    assert ["type_accuracy" in report for report in epochs] == [False, True, True]
    assert ["acceptance/loss" in report for report in epochs] == [False, True, True]
    assert [report["acceptance/refits"] for report in epochs] == [0, 1, 3]


def test_an_error_in_a_background_refit_is_raised_with_its_traceback(monkeypatch):
    def broken_evidence(responses, likelihood, forgetting):
        raise ValueError("no evidence")

    monkeypatch.setattr("hundredfold.envs.dvrp.acceptance.bayes.trip_evidence", broken_evidence)
    beliefs = new_model(acceptance_refit="background", acceptance_refit_interval=STEPS)
    run_epoch(beliefs, 0)
    with pytest.raises(TrainingError, match=r"background refit on \d+ responses failed") as caught:
        run_epoch(beliefs, 1)
    text = "".join(traceback.format_exception(caught.value))
    assert "in broken_evidence" in text
    beliefs.close()


def test_close_cancels_a_background_refit():
    options = {"acceptance_model": "embedding", "acceptance_refit": "background"}
    beliefs = new_model(acceptance_refit_interval=STEPS, **options, embedding_epochs=100_000)
    run_epoch(beliefs, 0)
    thread = beliefs.pending.thread
    assert thread.is_alive()
    beliefs.close()
    assert not thread.is_alive()
    beliefs.close()


def test_a_checkpoint_of_another_population_raises():
    other = new_model(env=DvrpSettings(num_customers=10, population_size=30))
    with pytest.raises(CheckpointError, match="covers 60 customers, the population has 40"):
        new_model().restore(other.state())


def test_none_makes_no_acceptance_model():
    assert new_model(acceptance_model="none") is None


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"acceptance_model": "baye"}, "did you mean bayes"),
        ({"acceptance_refit": "later"}, "known names: background, inline"),
        ({"acceptance_buffer_size": 0}, "acceptance_buffer_size must be at least 1, got 0"),
        ({"acceptance_refit_interval": -1}, "acceptance_refit_interval must be at least 0"),
        ({"embedding_epochs": 0}, "embedding_epochs must be at least 1"),
        ({"epsilon_start": 1.5}, "epsilon_start must be at least 0 and at most 1"),
        ({"epsilon_end": float("nan")}, "epsilon_end must be at least 0"),
    ],
)
def test_invalid_settings_raise(wrong, hint):
    with pytest.raises(SettingsError, match=hint):
        AcceptanceModelSettings(**wrong)


@pytest.mark.process
def test_torch_is_imported_only_for_the_embedding_model():
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


def test_bookings_are_counted_by_trip_for_sampled_futures():
    env = DvrpSettings(num_customers=10, population_size=20, future_samples=1)
    beliefs = new_model(env=env)
    at_first = beliefs.params(exploring=True)["applied_shares"]
    assert_array_equal(at_first[:, NO_CHANGE], 1.0)
    for number in range(3):
        run_epoch(beliefs, number, env)
    shares = beliefs.params(exploring=True)["applied_shares"]
    assert_allclose(shares.sum(axis=1), 1.0, atol=5e-3)
    # A refused offer is booked without a shift.
    _, trip, _, offer, accepted = simulate_calls(env, NUM_ENVS, seed=2)
    applied = np.where(accepted, offer, NO_CHANGE)
    assert (shares[trip, applied] > 0).all()
    assert (shares[trip][applied != NO_CHANGE, NO_CHANGE] < 1).all()
    restored = new_model(env=env)
    restored.restore(beliefs.state())
    assert_same_params(beliefs, restored)
    assert "applied_shares" not in new_model().params(exploring=True)
