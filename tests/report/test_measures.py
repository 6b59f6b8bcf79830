"""Every metric of a run has a name, a unit and, where it is not plain, an explanation."""

import pytest

import hundredfold
from helpers.training_runs import read_metrics
from hundredfold.report.measures import FUTURES_LOSSES, PHASES, diagnostics, measure_of

# Shown elsewhere, or axes.
OTHERS = {"epoch", "total_steps", "total_episodes", "wall_seconds", "samples_per_second", "return_mean"}
DVRP = {"num_customers": 4, "num_vehicles": 2, "num_envs": 2, "epochs": 2, "eval_interval": 1, "eval_episodes": 2}
RUNS = {
    "futures": ("dvrp", DVRP),
    "returns": ("dvrp", DVRP | {"preset": "returns", "acceptance_model": "embedding"}),
    "dqn": ("corridor", {"algo": "dqn", "epochs": 2, "learning_starts": 8}),
    "ppo": ("corridor", {"epochs": 2}),
}


@pytest.mark.parametrize(("env", "settings"), RUNS.values(), ids=RUNS)
def test_every_metric_of_a_run_has_a_unit(tmp_path, env, settings):
    run = hundredfold.train(env, save_dir=tmp_path, quiet=True, report=False, **settings)
    keys = {key.removeprefix("eval/") for row in read_metrics(run.path) for key in row}
    phases = {key.removeprefix("time/") for key in keys if key.startswith("time/")}
    assert phases <= {*PHASES}
    keys -= OTHERS | {f"time/{phase}" for phase in phases} | {"episodes", "ci_low", "ci_high"}
    assert {key for key in keys if measure_of(key).unit == "value"} == set()


def test_a_metric_that_is_not_known_is_named_by_its_key():
    measure = measure_of("avg_wait_minutes")
    assert (measure.title, measure.unit) == ("Average wait", "min")
    assert measure_of("avg_temperature").unit == "value"


@pytest.mark.parametrize("loss", FUTURES_LOSSES)
def test_the_loss_of_sampled_futures_is_explained_as_what_it_is(loss):
    first = diagnostics({"ppo": {"advantages": "futures", "futures_loss": loss}})[0]
    assert (first.key, first.unit) == ("policy_loss", FUTURES_LOSSES[loss][0])
    assert "PPO" in diagnostics({"ppo": {"advantages": "gae"}})[0].description
