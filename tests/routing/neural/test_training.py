"""Training of the routing policy: it learns, it resumes to the last bit, it explains itself."""

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
from hundredfold.envs.dvrp.training_instances import PracticeBooks, env_instances
from hundredfold.routing.instances import random_instances
from hundredfold.routing.lns_oracle import LNSOracle
from hundredfold.routing.neural.inputs import prepared
from hundredfold.routing.neural.losses import in_order_of_leaving, practice_loss, told_again
from hundredfold.routing.neural.model import PolicySettings, RoutingPolicy
from hundredfold.routing.neural.oracle import NeuralOracle, NeuralSettings
from hundredfold.routing.neural.training import BEST, OracleTraining
from hundredfold.routing.neural.training_settings import TrainingSettings
from hundredfold.routing.neural.weights import weight_facts

TINY = PolicySettings(width=16, heads=2, layers=1, feed_forward=32, move_width=8)
QUICK = TrainingSettings(
    imitation_updates=3,
    practice_updates=3,
    imitation_books=8,
    practice_books=3,
    practice_samples=4,
    teacher_rounds=5,
    validate_every=2,
    validation_books=4,
)
ENV = DvrpSettings(num_customers=6)


def training(folder, settings=QUICK, **others):
    draw = PracticeBooks(ENV).draw
    return OracleTraining(folder, draw, draw, 6, settings, size=TINY, **others)


def weights_of(done):
    return {name: tensor.numpy().copy() for name, tensor in done.policy.state_dict().items()}


class EnoughError(Exception):
    pass


def stop_after(updates):
    def check():
        nonlocal updates
        updates -= 1
        if updates == 0:
            raise EnoughError

    return check


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path):
    straight = training(tmp_path / "straight")
    straight.run()
    stopped = training(tmp_path / "stopped")
    with pytest.raises(EnoughError):
        stopped.run(after_update=stop_after(3))
    stopped.save()
    resumed = training(tmp_path / "stopped")
    assert resumed.update == 3
    resumed.run()
    for name, values in weights_of(straight).items():
        assert_array_equal(weights_of(resumed)[name], values)
    assert resumed.best_gap == straight.best_gap


def test_a_folder_of_another_training_is_refused(tmp_path):
    training(tmp_path).run()
    with pytest.raises(CheckpointError, match="other settings"):
        training(tmp_path, replace(QUICK, seed=1))
    longer = training(tmp_path, replace(QUICK, practice_updates=4))
    assert longer.update == 6


def test_imitation_learns_to_agree_with_the_teacher(tmp_path):
    settings = replace(
        QUICK, imitation_updates=60, practice_updates=0, imitation_books=16, validate_every=20
    )
    told = []
    training(tmp_path, replace(settings, learning_rate=3e-3)).run(told.append)
    assert told[-1]["loss"] < 0.8 * told[0]["loss"]
    assert told[-1]["agreement"] > told[0]["agreement"]
    assert set(told[-1]["greedy_gap_pct"]) == {"1", "2", "4", "6"}


@pytest.mark.parametrize("baseline", ["shared", "greedy"])
def test_practice_makes_cheaper_plans_likelier(baseline):
    torch.manual_seed(0)
    policy = RoutingPolicy(TINY)
    settings = replace(QUICK, baseline=baseline, practice_books=4, practice_samples=16)
    books = env_instances(DvrpSettings(), rng.seed_key(3), 4, 14)
    optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)
    minutes = []
    for update in range(25):
        loss, told = practice_loss(policy, books, rng.seed_key(update), settings)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        minutes.append(told["minutes"])
    assert np.mean(minutes[-5:]) < np.mean(minutes[:5])


def test_a_searched_plan_is_told_move_by_move():
    books = random_instances(5, 10, seed=2)
    plans = LNSOracle().solve(books)
    ready = prepared(books)
    in_order_of_leaving(ready.books, plans.routes, plans.lengths)
    rows = np.arange(5)
    told = told_again(
        ready.books, ready.rules, ready.pace, rows, plans.routes[None], plans.lengths[None]
    )
    real = (torch.arange(told.width) < told.counts).numpy()
    for book in rows:
        driven = [
            stop
            for vehicle in range(5)
            for stop in [*plans.route(book, vehicle), 0][: plans.lengths[book, vehicle] + 1]
        ]
        chosen = told.chosen[book].numpy()[real[book]]
        # Decisions are the driven stops without those that had no alternative, in the same order.
        left = iter(driven)
        assert all(stop in left for stop in chosen)
    allowed = told.decisions.allowed.numpy()[real]
    assert (allowed.sum(axis=1) > 1).all()
    assert allowed[np.arange(len(allowed)), told.chosen.numpy()[real]].all()


def test_practice_books_repeat_and_differ():
    books = PracticeBooks(ENV, variety=0.5)
    key = rng.spawn(rng.seed_key(1), np.arange(12))
    drawn = [books.draw(one, 3, 4) for one in key]
    again = [books.draw(one, 3, 4) for one in key]
    for first, second in zip(drawn, again, strict=True):
        assert_array_equal(first.windows, second.windows)
    assert len({book.travel.minutes.tobytes() for book in drawn}) > 2
    plain = env_instances(ENV, key[0], 20, 6, offered=False)
    moved = env_instances(ENV, key[0], 20, 6, offered=True)
    assert_array_equal(plain.cells, moved.cells)
    assert 0 < (plain.windows != moved.windows).any(axis=(1, 2, 3)).sum() < 20


def test_the_command_trains_and_its_weights_price_books(tmp_path, capsys):
    words = [
        *("train-oracle", "--save-dir", str(tmp_path), "--customers", "5", "--json", "--quiet"),
        *("--imitation-updates", "2", "--practice-updates", "1", "--imitation-books", "4"),
        *("--practice-books", "2", "--practice-samples", "2", "--teacher-rounds", "5"),
        *("--validation-books", "3", "--width", "16", "--heads", "2", "--layers", "1"),
        *("--feed-forward", "16", "--seed", "9"),
    ]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert [row["requests"] for row in first["rows"]] == [1, 2, 3, 5]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == first["rows"]
    facts = weight_facts(tmp_path / BEST)
    assert facts["training"]["seed"] == 9
    assert facts["env"]["num_customers"] == 5
    oracle = NeuralOracle(NeuralSettings(weights=str(tmp_path / BEST)))
    assert np.isfinite(oracle.solve(random_instances(2, 5)).cost).all()


@pytest.mark.parametrize(
    "wrong", [{"practice_samples": 1}, {"finished_share": 1.5}, {"learning_rate": 0.0}]
)
def test_training_settings_refuse_what_cannot_be(wrong):
    with pytest.raises(SettingsError):
        TrainingSettings(**wrong)
