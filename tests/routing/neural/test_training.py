"""Training of the routing policy: it learns, resumes bit-exactly, and records its provenance."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from hundredfold.cli.main import main
from hundredfold.core import rng
from hundredfold.core.errors import CheckpointError, SettingsError
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.training_instances import TrainingInstances, env_instances
from hundredfold.routing.instances import random_instances
from hundredfold.routing.lns_oracle import LNSOracle
from hundredfold.routing.neural.features import policy_inputs
from hundredfold.routing.neural.losses import reinforce_loss, sort_vehicles_by_start, teacher_force
from hundredfold.routing.neural.model import PolicySettings, RoutingPolicy, read_provenance
from hundredfold.routing.neural.oracle import NeuralOracle, NeuralSettings
from hundredfold.routing.neural.training import BEST, OracleTraining, TrainingSettings

TINY = PolicySettings(embed_dim=16, num_heads=2, num_encoder_layers=1, feedforward_dim=32, action_hidden_dim=8)
QUICK = TrainingSettings(
    imitation_updates=3,
    reinforce_updates=3,
    imitation_batch_size=8,
    reinforce_batch_size=3,
    reinforce_samples=4,
    teacher_iterations=5,
    validation_interval=2,
    validation_instances=4,
)
ENV = DvrpSettings(num_customers=6)


def training(folder, settings=QUICK, **others):
    sample = TrainingInstances(ENV).sample
    return OracleTraining(folder, sample, sample, 6, settings, policy_settings=TINY, **others)


def weights_of(training):
    return {name: tensor.numpy().copy() for name, tensor in training.policy.state_dict().items()}


class StopTrainingError(Exception):
    pass


def stop_after(updates):
    def check():
        nonlocal updates
        updates -= 1
        if updates == 0:
            raise StopTrainingError

    return check


def test_a_resumed_training_is_bit_exact(tmp_path):
    straight = training(tmp_path / "straight")
    straight.run()
    stopped = training(tmp_path / "stopped")
    with pytest.raises(StopTrainingError):
        stopped.run(on_update=stop_after(3))
    stopped.save()
    resumed = training(tmp_path / "stopped")
    assert resumed.update == 3
    resumed.run()
    for name, values in weights_of(straight).items():
        assert_array_equal(weights_of(resumed)[name], values)
    assert resumed.best_gap == straight.best_gap


def test_resuming_with_other_settings_is_rejected(tmp_path):
    training(tmp_path).run()
    with pytest.raises(CheckpointError, match="other settings"):
        training(tmp_path, replace(QUICK, seed=1))
    longer = training(tmp_path, replace(QUICK, reinforce_updates=4))
    assert longer.update == 6


def test_imitation_learns_the_actions_of_the_teacher(tmp_path):
    settings = replace(
        QUICK,
        imitation_updates=60,
        reinforce_updates=0,
        imitation_batch_size=16,
        validation_interval=20,
        imitation_learning_rate=3e-3,
    )
    rows = []
    training(tmp_path, settings).run(rows.append)
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    assert rows[-1]["accuracy"] > rows[0]["accuracy"]
    assert set(rows[-1]["greedy_gap_pct"]) == {"1", "2", "4", "6"}


@pytest.mark.parametrize("baseline", ["shared", "greedy"])
def test_reinforce_lowers_the_cost_of_sampled_solutions(baseline):
    torch.manual_seed(0)
    policy = RoutingPolicy(TINY)
    problems = env_instances(DvrpSettings(), rng.seed_key(3), 4, 14)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    costs = []
    for update in range(25):
        loss, metrics = reinforce_loss(
            policy, problems, rng.seed_key(update), samples=16, baseline=baseline, improved_cost_weight=0.3
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        costs.append(metrics["cost_minutes"])
    assert np.mean(costs[-5:]) < np.mean(costs[:5])


def test_teacher_forcing_follows_the_routes_step_by_step():
    problems = random_instances(5, 10, seed=2)
    solutions = LNSOracle().solve(problems)
    inputs = policy_inputs(problems)
    sort_vehicles_by_start(inputs.instances, solutions.routes, solutions.lengths)
    rows = np.arange(5)
    forced = teacher_force(inputs, rows, solutions.routes[None], solutions.lengths[None])
    is_step = (torch.arange(forced.max_steps) < forced.num_steps).numpy()
    for row in rows:
        visited = [
            stop
            for vehicle in range(5)
            for stop in [*solutions.route(row, vehicle), 0][: solutions.lengths[row, vehicle] + 1]
        ]
        actions = forced.actions[row].numpy()[is_step[row]]
        # Steps are the visited stops in order, without those that were the only feasible action.
        remaining = iter(visited)
        assert all(stop in remaining for stop in actions)
    mask = forced.steps.action_mask.numpy()[is_step]
    assert (mask.sum(axis=1) > 1).all()
    assert mask[np.arange(len(mask)), forced.actions.numpy()[is_step]].all()


def test_training_instances_are_reproducible_and_varied():
    instances = TrainingInstances(ENV, domain_randomization=0.5)
    keys = rng.spawn(rng.seed_key(1), np.arange(12))
    drawn = [instances.sample(key, 3, 4) for key in keys]
    again = [instances.sample(key, 3, 4) for key in keys]
    for first, second in zip(drawn, again, strict=True):
        assert_array_equal(first.windows, second.windows)
    assert len({problems.travel.minutes.tobytes() for problems in drawn}) > 2
    plain = env_instances(ENV, keys[0], 20, 6, with_offers=False)
    shifted = env_instances(ENV, keys[0], 20, 6, with_offers=True)
    assert_array_equal(plain.cells, shifted.cells)
    assert 0 < (plain.windows != shifted.windows).any(axis=(1, 2, 3)).sum() < 20


SMALL_COMMAND = (
    *("train-oracle", "--customers", "5", "--imitation-updates", "2", "--reinforce-updates", "1"),
    *("--imitation-batch-size", "4", "--reinforce-batch-size", "2", "--reinforce-samples", "2"),
    *("--teacher-iterations", "5", "--validation-instances", "3", "--embed-dim", "16", "--num-heads", "2"),
    *("--num-encoder-layers", "1", "--feedforward-dim", "16", "--seed", "9"),
)


def test_the_command_says_what_its_figures_are_within_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*SMALL_COMMAND, "--save-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    # A path is not broken.
    lines = (printed.out.replace(str(tmp_path), "runs/oracle") + printed.err).splitlines()
    assert max(map(len, lines)) <= 80
    assert "cost above the reference" in printed.err
    assert "% with 1 request," in printed.err
    assert "; after local search:" in " ".join(printed.err.split())
    table = " ".join(printed.out.split())
    assert (
        "cost above the reference (large neighbourhood search, 100 iterations), in %, 3 validation instances" in table
    )
    assert "local search" in printed.out


def test_the_command_trains_weights_that_the_oracle_loads(tmp_path, capsys):
    command = [*SMALL_COMMAND, "--save-dir", str(tmp_path), "--json", "--quiet"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert [row["requests"] for row in first["rows"]] == [1, 2, 3, 5]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == first["rows"]
    provenance = read_provenance(tmp_path / BEST)
    assert provenance["training"]["seed"] == 9
    assert provenance["env"]["num_customers"] == 5
    oracle = NeuralOracle(NeuralSettings(weights=str(tmp_path / BEST)))
    assert np.isfinite(oracle.solve(random_instances(2, 5)).cost).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"imitation_updates": -1},
        {"validation_interval": 0},
        {"reinforce_samples": 1},
        {"improved_cost_weight": 1.5},
        {"imitation_learning_rate": 0.0},
    ],
)
def test_invalid_training_settings_are_rejected(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        TrainingSettings(**wrong)
