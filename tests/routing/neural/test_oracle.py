"""The neural oracle: costs depend on the instance alone, however calls are split."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core.errors import CheckpointError, HundredfoldError, SettingsError
from hundredfold.routing.instances import random_instances
from hundredfold.routing.neural.model import SHIPPED, RoutingPolicy, load_policy, read_provenance, save_policy
from hundredfold.routing.neural.oracle import NeuralOracle, NeuralSettings
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


def test_routes_do_not_depend_on_oracle_batch():
    days = mixed_days()
    whole = solved(days, oracle_samples=2)
    for oracle_batch in (1, 3, 5):
        split = solved(days, oracle_samples=2, oracle_batch=oracle_batch)
        assert_array_equal(split.routes, whole.routes)
        assert_array_equal(split.cost, whole.cost)


def test_routes_do_not_depend_on_threads():
    days = mixed_days()
    assert_array_equal(solved(days, threads=2).routes, solved(days).routes)


def test_solutions_are_complete_and_verified():
    days = random_instances(12, 20, seed=2)
    for settings in ({"improve_passes": 0}, {}, {"oracle_samples": 4}):
        solutions = solved(days, **settings)
        assert violations(days, solutions) == []
        assert not solutions.unserved.any()


def test_local_search_and_samples_only_lower_costs():
    days = random_instances(12, 15, seed=3)
    greedy = solved(days, improve_passes=0).cost
    improved = solved(days, improve_passes=2).cost
    best = solved(days, improve_passes=2, oracle_samples=8).cost
    assert (improved <= greedy).all()
    assert (best <= improved).all()
    assert improved.sum() < greedy.sum()
    assert best.sum() < improved.sum()


def test_an_empty_batch_has_no_solutions():
    assert len(solved(random_instances(3, 4).rows(slice(0, 0)))) == 0


class FailingPolicy(RoutingPolicy):
    """Raises an error in its first calls of `encode`."""

    failures = 0
    error: Exception = MemoryError()

    def encode(self, inputs, drive):
        if self.failures > 0:
            self.failures -= 1
            raise self.error
        return super().encode(inputs, drive)


def failing_policy(failures, error):
    shipped = load_policy()
    policy = FailingPolicy(shipped.settings).eval().requires_grad_(False)
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
    oracle = NeuralOracle(NeuralSettings(oracle_batch=8), failing_policy(2, error))
    with pytest.warns(UserWarning, match="oracle_batch=2"):
        solutions = oracle.solve(days)
    assert oracle.inference.settings.oracle_batch == 2
    assert_array_equal(solutions.routes, solved(days).routes)


def test_out_of_memory_on_a_single_instance_is_an_error():
    oracle = NeuralOracle(NeuralSettings(oracle_batch=2), failing_policy(99, MemoryError()))
    with (
        pytest.warns(UserWarning, match="oracle_batch=1"),
        pytest.raises(HundredfoldError, match="out of memory on a single instance"),
    ):
        oracle.solve(random_instances(2, 3, seed=5))


def test_other_runtime_errors_are_raised():
    oracle = NeuralOracle(NeuralSettings(), failing_policy(1, RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        oracle.solve(random_instances(2, 3, seed=5))


def test_saved_weights_load_with_their_provenance(tmp_path):
    file = tmp_path / "mine.safetensors"
    save_policy(file, load_policy(), {"seed": 7})
    days = random_instances(4, 8, seed=6)
    assert read_provenance(file) == {"seed": 7}
    assert_array_equal(solved(days, weights=str(file)).routes, solved(days).routes)


def test_shipped_weights_are_small_and_record_their_provenance():
    assert SHIPPED.stat().st_size < 5_000_000
    provenance = read_provenance()
    assert "seed" in provenance["training"]
    assert provenance["validation"]["update"] > 0


def test_missing_and_corrupt_weights_files_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="train-oracle"):
        NeuralOracle(NeuralSettings(weights=str(tmp_path / "nothing.safetensors")))
    corrupt = tmp_path / "corrupt.safetensors"
    corrupt.write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match=r"corrupt\.safetensors"):
        NeuralOracle(NeuralSettings(weights=str(corrupt)))


@pytest.mark.parametrize(
    "wrong", [{"oracle_samples": 0}, {"oracle_batch": 0}, {"improve_passes": -1}, {"temperature": 0.0}]
)
def test_invalid_settings_are_rejected(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        NeuralSettings(**wrong)
