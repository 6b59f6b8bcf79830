"""The neural oracle: prices that depend on the book alone, however calls are split."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core.errors import CheckpointError, HundredfoldError, SettingsError
from hundredfold.routing.instances import random_instances
from hundredfold.routing.neural.model import RoutingPolicy
from hundredfold.routing.neural.oracle import NeuralOracle, NeuralSettings
from hundredfold.routing.neural.weights import SHIPPED, load_policy, save_policy, weight_facts
from hundredfold.routing.verifier import violations


def mixed_days(num_days=14, max_requests=9):
    days = random_instances(num_days, max_requests, seed=1)
    sizes = np.arange(num_days) % (max_requests + 1)
    padding = np.arange(max_requests) >= sizes[:, None]
    days.cells[padding] = 0
    days.windows[padding] = 0.0
    days.riders[padding] = 0
    return dataclasses.replace(days, num_requests=sizes)


def solved(days, **settings):
    return NeuralOracle(NeuralSettings(**settings)).solve(days)


def test_chunks_change_no_route():
    days = mixed_days()
    whole = solved(days, oracle_samples=2)
    for oracle_batch in (1, 3, 5):
        split = solved(days, oracle_samples=2, oracle_batch=oracle_batch)
        assert_array_equal(split.routes, whole.routes)
        assert_array_equal(split.cost, whole.cost)


def test_threads_change_no_route():
    days = mixed_days()
    assert_array_equal(solved(days, threads=2).routes, solved(days).routes)


def test_every_plan_is_served_and_verified():
    days = random_instances(12, 20, seed=2)
    for settings in ({"improve_passes": 0}, {}, {"oracle_samples": 4}):
        plans = solved(days, **settings)
        assert violations(days, plans) == []
        assert not plans.unserved.any()


def test_passes_and_samples_only_lower_prices():
    days = random_instances(12, 15, seed=3)
    bare = solved(days, improve_passes=0).cost
    relocated = solved(days, improve_passes=2).cost
    best = solved(days, improve_passes=2, oracle_samples=8).cost
    assert (relocated <= bare).all()
    assert (best <= relocated).all()
    assert relocated.sum() < bare.sum()
    assert best.sum() < relocated.sum()


def test_no_books_give_no_plans():
    assert len(solved(random_instances(3, 4).rows(slice(0, 0)))) == 0


class ForgetfulPolicy(RoutingPolicy):
    """Finds no memory the first few times it is asked."""

    failures = 0
    error: Exception = MemoryError()

    def encode(self, table, drive):
        if self.failures > 0:
            self.failures -= 1
            raise self.error
        return super().encode(table, drive)


def forgetful(failures, error):
    shipped = load_policy()
    policy = ForgetfulPolicy(shipped.size).eval().requires_grad_(False)
    policy.load_state_dict(shipped.state_dict())
    policy.failures, policy.error = failures, error
    return policy


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")],
    ids=["MemoryError", "RuntimeError"],
)
def test_running_out_of_memory_halves_the_batch_with_a_warning(error):
    days = random_instances(10, 6, seed=4)
    oracle = NeuralOracle(NeuralSettings(oracle_batch=8), forgetful(2, error))
    with pytest.warns(UserWarning, match="oracle_batch=2"):
        plans = oracle.solve(days)
    assert oracle.router.batch == 2
    assert_array_equal(plans.routes, solved(days).routes)


def test_no_memory_at_all_is_said_in_one_sentence():
    oracle = NeuralOracle(NeuralSettings(oracle_batch=2), forgetful(99, MemoryError()))
    with (
        pytest.warns(UserWarning, match="oracle_batch=1"),
        pytest.raises(HundredfoldError, match="no memory for a single book"),
    ):
        oracle.solve(random_instances(2, 3, seed=5))


def test_other_errors_are_not_taken_for_lack_of_memory():
    oracle = NeuralOracle(NeuralSettings(), forgetful(1, RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        oracle.solve(random_instances(2, 3, seed=5))


def test_weights_come_back_from_disk_with_their_story(tmp_path):
    file = tmp_path / "mine.safetensors"
    save_policy(file, load_policy(), {"seed": 7})
    days = random_instances(4, 8, seed=6)
    assert weight_facts(file) == {"seed": 7}
    assert_array_equal(solved(days, weights=str(file)).routes, solved(days).routes)


def test_shipped_weights_are_small_and_tell_how_they_were_made():
    assert SHIPPED.stat().st_size < 5_000_000
    facts = weight_facts()
    assert "seed" in facts["training"]
    assert facts["held_out"]["update"] > 0


def test_missing_and_broken_weights_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="train-oracle"):
        NeuralOracle(NeuralSettings(weights=str(tmp_path / "nothing.safetensors")))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match=r"broken\.safetensors"):
        NeuralOracle(NeuralSettings(weights=str(broken)))


@pytest.mark.parametrize(
    "wrong",
    [{"oracle_samples": 0}, {"oracle_batch": 0}, {"improve_passes": -1}, {"temperature": 0.0}],
)
def test_settings_refuse_what_cannot_be(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        NeuralSettings(**wrong)
