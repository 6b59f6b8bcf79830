"""`train --backend ray`: same results, bit-exact resume, clusters that are joined or started."""

import os
import signal
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

import hundredfold
from helpers.processes import run_forked, wait_until
from helpers.ray_pool import ReusingActorPool, shared_cluster
from helpers.training_runs import KILLED_RUN, assert_same_run, read_metrics, run_python, truncated_run
from hundredfold.core.errors import SettingsError
from hundredfold.distributed.ray_backend import RayBackend
from hundredfold.training.checkpoint import saved_epochs
from hundredfold.training.run_folder import RunFolder

SMALL = {
    "epochs": 6,
    "num_envs": 4,
    "num_steps": 16,
    "eval_interval": 3,
    "eval_episodes": 4,
    "save_interval": 2,
    "keep_last": 9,
    "report": False,
    "quiet": True,
}
ON_RAY = {"backend": "ray", "workers": 1, "actor_cpus": 0.0}

pytestmark = pytest.mark.ray


@pytest.fixture
def actors(monkeypatch):
    """Let runs reuse the actors of other tests."""
    monkeypatch.setattr(RayBackend, "pool_class", ReusingActorPool)
    return shared_cluster()


def actor_pids():
    """Actor processes of the cluster that this process started."""
    pids = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            is_ours = parent_of(parent_of(path.parent.name)) == str(os.getpid())
            if is_ours and b"ray::EnvActor" in path.read_bytes():
                pids.add(path.parent.name)
    return pids


def parent_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]


def test_run_with_one_actor_equals_the_run_in_one_process(actors, tmp_path):
    here = hundredfold.train("corridor", save_dir=tmp_path, name="here", **SMALL)
    there = hundredfold.train("corridor", save_dir=tmp_path, name="there", **SMALL, **ON_RAY)
    assert_same_run(there.path, here.path)
    assert RunFolder.open(there.path).settings().machine.backend == "ray"


def test_belief_model_learns_the_same_from_actors(actors, tmp_path):
    day = {**SMALL, "num_customers": 6, "num_steps": 0, "lns_iterations": 1, "oracle_threads": 1}
    here = hundredfold.train("dvrp", save_dir=tmp_path, name="here", **day)
    there = hundredfold.train("dvrp", save_dir=tmp_path, name="there", **day, **ON_RAY)
    assert_same_run(there.path, here.path)


def test_actors_estimate_the_same_futures(actors, tmp_path):
    futures = {"advantages": "futures", "architecture": "per_action", "observation": "offers", "future_samples": 1}
    day = {**SMALL, "epochs": 4, "num_customers": 6, "num_steps": 0, "lns_iterations": 1, "oracle_threads": 1}
    here = hundredfold.train("dvrp", save_dir=tmp_path, name="here", backend="in_process", **day, **futures)
    there = hundredfold.train("dvrp", save_dir=tmp_path, name="there", **day, **futures, **ON_RAY)
    assert_same_run(there.path, here.path)
    assert all(epoch["cost_variance"] > 0.0 for epoch in there.metrics)  # learned from estimated costs


def test_actors_collect_for_a_privileged_critic(actors, tmp_path):
    settings = {**SMALL, "epochs": 3, "critic": "privileged", "horizons": (20,), "hidden_sizes": (16,), "channels": ()}
    here = hundredfold.train("cage2", save_dir=tmp_path, name="here", **settings)
    there = hundredfold.train("cage2", save_dir=tmp_path, name="there", **settings, **ON_RAY)
    assert_same_run(there.path, here.path)
    half = truncated_run(there.path, 2)
    assert hundredfold.train(resume=half, quiet=True, report=False).finished
    assert_same_run(half, here.path)


@pytest.mark.parametrize("lag", [0, 1])
def test_actors_keep_the_memory_of_their_envs(actors, tmp_path, lag):
    settings = {**SMALL, "epochs": 4, "memory": "gru", "memory_size": 8, "hidden_sizes": (16,)}
    on_ray = {**settings, **ON_RAY, "policy_lag": lag}
    there = hundredfold.train("corridor", save_dir=tmp_path, name="there", **on_ray)
    if lag:
        same = truncated_run(there.path, 2)
        assert hundredfold.train(resume=same, quiet=True, report=False).finished
    else:
        same = hundredfold.train("corridor", save_dir=tmp_path, name="here", **settings).path
    assert_same_run(same, there.path)


@pytest.mark.parametrize("lag", [0, 1])
def test_resume_after_a_dead_driver_is_bit_exact(actors, tmp_path, lag):
    settings = {**SMALL, **ON_RAY, "workers": 2, "policy_lag": lag}
    whole = hundredfold.train("cartpole", save_dir=tmp_path, name="whole", **settings)
    half = truncated_run(whole.path, 2)
    assert hundredfold.train(resume=half, quiet=True, report=False).finished
    assert_same_run(half, whole.path)


@pytest.mark.process
def test_killed_driver_leaves_no_actors_and_a_resumable_run(actors, tmp_path):
    settings = {**SMALL, **ON_RAY, "workers": 2, "save_interval": 1}
    whole = hundredfold.train("cartpole", save_dir=tmp_path, name="whole", **settings)
    before = actor_pids()
    assert before
    address = actors.get_runtime_context().gcs_address
    settings = {**settings, "address": address}
    del settings["report"]
    code = KILLED_RUN.format(moment="after saving", env="cartpole", save_dir=str(tmp_path), settings=settings)
    run_forked(code, expect=-signal.SIGKILL)
    killed = tmp_path / "killed"
    assert saved_epochs(RunFolder.open(killed)) == [1, 2, 3]
    wait_until(lambda: actor_pids() <= before)
    again = {"address": "", "quiet": True, "report": False}
    assert hundredfold.train(resume=killed, **again).finished
    assert_same_run(killed, whole.path)


@pytest.mark.parametrize("change", [{"workers": 3}, {"backend": "serial"}])
def test_run_resumes_with_another_number_of_actors_or_another_backend(actors, tmp_path, change):
    settings = {**SMALL, **ON_RAY, "workers": 2}
    whole = hundredfold.train("corridor", save_dir=tmp_path, name="whole", **settings)
    half = truncated_run(whole.path, 4)
    assert hundredfold.train(resume=half, quiet=True, report=False, **change).finished
    assert [row["epoch"] for row in read_metrics(half)] == [1, 2, 3, 4, 5, 6]


def test_third_party_env_trains_and_resumes(actors, tmp_path):
    settings = {**SMALL, **ON_RAY, "workers": 2, "policy_update_interval": 2}
    whole = hundredfold.train("CartPole-v1", save_dir=tmp_path, name="whole", **settings)
    half = truncated_run(whole.path, 4)
    with pytest.warns(UserWarning, match="cannot continue in the middle of an episode"):
        assert hundredfold.train(resume=half, quiet=True, report=False).finished


def test_other_algorithms_are_rejected_before_anything_starts(tmp_path):
    with pytest.raises(SettingsError, match="--backend ray works with --algo ppo only"):
        hundredfold.train("corridor", algo="dqn", save_dir=tmp_path, backend="ray", quiet=True)


def test_joined_cluster_stays_after_the_run(actors, tmp_path):
    hundredfold.train("corridor", save_dir=tmp_path, name="run", **SMALL, **ON_RAY)
    assert actors.is_initialized()


# --- unreachable clusters, and a cluster of the run's own


def train_args(folder, *more):
    args = ["train", "corridor", "--backend", "ray", "--epochs", "2", "--num-envs", "4"]
    return [*args, "--num-steps", "16", "--save-dir", str(folder), "--name", "run", *more]


@pytest.mark.process
def test_unreachable_cluster_is_reported_and_processes_run_instead(tmp_path):
    pytest.importorskip("ray")
    args = train_args(tmp_path, "--address", "127.0.0.1:1")
    done = run_forked(f"import sys; from hundredfold.cli.main import main; main({args!r})", expect=0)
    assert "cannot join the Ray cluster at 127.0.0.1:1" in done.stderr
    assert "The backend processes runs instead" in done.stderr
    assert RunFolder.open(tmp_path / "run").settings().machine.backend == "processes"


TOKEN_REQUIRED = """
import socket
from hundredfold.core.errors import WorkerError
from hundredfold.distributed.placement import connect
from hundredfold.backends.settings import RaySettings
with socket.create_server(("127.0.0.1", 0)) as server:
    try:
        connect(RaySettings(address=f"127.0.0.1:{server.getsockname()[1]}"), 1)
    except WorkerError as error:
        print(error)
"""


@pytest.mark.process
def test_missing_token_of_a_cluster_is_reported(tmp_path):
    pytest.importorskip("ray")
    no_token = {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path), "RAY_AUTH_TOKEN": ""}
    done = run_python(TOKEN_REQUIRED, expect=0, env=no_token)
    assert "no authentication token was found. The address accepts connections" in done.stdout
    assert "RAY_AUTH_MODE=token" in done.stdout


@pytest.mark.process
def test_without_the_extra_one_line_says_how_to_install_it(tmp_path):
    code = f"""
import sys
from importlib import util
find = util.find_spec
util.find_spec = lambda name, *more: None if name == "ray" else find(name, *more)
from hundredfold.cli.main import main
sys.exit(main({train_args(tmp_path)!r}))
"""
    done = run_forked(code, expect=1)
    assert "pip install 'hundredfold[ray]'" in done.stderr
    assert "Traceback" not in done.stderr


OWN_CLUSTER = """
import hundredfold, ray
run = hundredfold.train("corridor", save_dir={folder!r}, name="run", epochs=2, num_envs=4,
    num_steps=16, backend="ray", workers=2, object_store_mb=100, report=False, quiet=True)
assert run.finished
print("running" if ray.is_initialized() else "ended")
"""


@pytest.mark.process
def test_cluster_started_by_a_run_ends_with_it(tmp_path):
    pytest.importorskip("ray")
    done = run_python(textwrap.dedent(OWN_CLUSTER.format(folder=str(tmp_path))), expect=0)
    assert done.stdout.strip().endswith("ended")
