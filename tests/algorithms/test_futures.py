"""Per-action policy networks, and learning from the estimated costs of all actions."""

import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import hundredfold
from helpers.training_runs import KILLED_RUN, assert_same_run, run_python
from hundredfold.algorithms.actor_critic import ActorCritic, NetworkSettings
from hundredfold.algorithms.futures import DecisionBuffer, FuturesLearner
from hundredfold.algorithms.ppo import PPO, PPOSettings
from hundredfold.backends import make_backend
from hundredfold.core.errors import SettingsError
from hundredfold.envs.corridor import Corridor
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import ACTION_COSTS, RolloutSettings

CPU = torch.device("cpu")
NETWORK = NetworkSettings(
    architecture="per_action", hidden_sizes=(32, 32), activation="silu", normalise_observations=True
)
DVRP = DvrpSettings(num_customers=6, observation="offers", future_samples=2, lns_iterations=1)
RUN = {
    "observation": "offers",
    "architecture": "per_action",
    "advantages": "futures",
    "future_samples": 1,
    "num_customers": 6,
    "num_envs": 8,
    "epochs": 5,
    "eval_interval": 0,
    "save_interval": 1,
    "backend": "in_process",
    "report": False,
}


def make_learner(settings, updates=20, num_envs=32, env=DVRP, kind=FuturesLearner, network=NETWORK):
    backend = make_backend("in_process", partial(Dvrp, settings=env), num_envs)
    learner = kind.build(
        backend.spec,
        settings=settings,
        network=network,
        rollout=RolloutSettings(num_envs=num_envs, num_steps=6),
        num_updates=updates,
        seed=5,
        device=CPU,
    )
    collector = Collector(backend, 5)
    collector.start(5)
    return learner, collector


def observation_of(rows=12):
    env = Dvrp(np.arange(rows), DVRP)
    out = env.reset(1)
    for _ in range(3):
        out = env.step(np.full(rows, 12))
    return {name: torch.from_numpy(array.copy()) for name, array in out.observation.items()}


def network_of(settings=NETWORK):
    torch.manual_seed(3)
    return ActorCritic(Dvrp(np.arange(1), DVRP).spec, settings)


def test_weights_are_shared_over_actions():
    network, observation = network_of(), observation_of()
    costs = network.per_action.costs(observation)
    order = np.r_[np.random.default_rng(0).permutation(12), 12, 15, 13, 14]
    shuffled = observation | {"offers": observation["offers"][:, order]}
    assert_allclose(network.per_action.costs(shuffled).detach(), costs[:, order].detach(), atol=1e-6)
    assert_array_equal(costs[:, 12].detach(), 0.0)


def test_a_joint_network_reads_all_actions_without_shared_weights():
    network, observation = network_of(replace(NETWORK, architecture="joint")), observation_of()
    costs = network.per_action.costs(observation)
    assert_array_equal(costs[:, 12].detach(), 0.0)
    changed = observation | {"offers": observation["offers"].clone()}
    changed["offers"][:, 3] += 1.0
    others = np.delete(np.arange(16), [3, 12])
    assert (network.per_action.costs(changed) != costs)[:, others].all()
    network.update_stats(observation)
    assert network.per_action.joint.count == 12


def test_logits_weigh_costs_by_acceptance_and_shift_penalty():
    network, observation = network_of(), observation_of()
    observation["acceptance_hint"] = torch.rand(12, 16)
    costs = network.per_action.costs(observation)
    expected = -observation["acceptance_hint"] * (costs + observation["shift_cost"])
    assert_allclose(network.logits(observation).detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    dear = observation | {"shift_cost": observation["shift_cost"] + 100.0 * (torch.arange(16) != 12)}
    assert_array_equal(network.logits(dear).argmax(dim=1), 12)


def test_a_per_action_network_needs_observations_of_actions():
    with pytest.raises(SettingsError, match="--observation offers"):
        ActorCritic(Corridor(np.arange(1)).spec, NetworkSettings(architecture="per_action"))
    with pytest.raises(SettingsError, match="turn off shared"):
        NetworkSettings(architecture="per_action", shared=True)


def test_ppo_trains_a_per_action_policy_from_returns():
    env = DvrpSettings(num_customers=6, observation="offers", lns_iterations=1)
    learner, collector = make_learner(PPOSettings(gamma=1.0), env=env, kind=PPO)
    before = {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}
    for _ in range(2):
        collector.collect(learner.policy, learner.buffer, 6)
        metrics = learner.update()
    assert metrics["first_ratio_error"] < 1e-5
    after = learner.network.state_dict()
    for name in ("per_action.feature_layer.weight", "per_action.log_scale", "value_head.weight"):
        assert not torch.equal(before[name], after[name])


def test_estimated_costs_are_stored_with_their_decision():
    learner, collector = make_learner(PPOSettings(advantages="futures"))
    batches = []

    def record(batch):
        batches.append(batch.info["offer_costs"].copy())

    collector.collect(learner.policy, learner.buffer, 6, step_callbacks=[record])
    assert_array_equal(learner.buffer.arrays[ACTION_COSTS], np.stack(batches))


@pytest.mark.parametrize("architecture", ["per_action", "joint"])
def test_regression_explains_the_estimated_costs(architecture):
    learner, collector = make_learner(
        PPOSettings(
            advantages="futures", learning_rate=3e-3, update_epochs=4, minibatch_size=64, max_gradient_norm=5.0
        ),
        network=replace(NETWORK, architecture=architecture),
    )
    errors = []
    for _ in range(8):
        collector.collect(learner.policy, learner.buffer, 6)
        metrics = learner.update()
        errors.append(metrics["policy_loss"] / metrics["cost_variance"])
    assert errors[-1] < 0.7 < errors[0]


def test_the_policy_gradient_lowers_the_expected_cost():
    learner, collector = make_learner(
        PPOSettings(advantages="futures", futures_loss="policy_gradient", learning_rate=3e-3, update_epochs=4)
    )
    costs = []
    for _ in range(6):
        collector.collect(learner.policy, learner.buffer, 6)
        costs.append(learner.update()["policy_loss"])
    assert costs[-1] < costs[0] < 0.5


def test_old_decisions_are_replaced_when_the_buffer_is_full():
    spec = Dvrp(np.arange(1), DVRP).spec
    buffer = DecisionBuffer(spec, ("context",), capacity=5)
    width = spec.observation["context"].shape[0]

    def rows(*values):
        numbers = np.array(values, np.float32)[:, None]
        return {"context": np.repeat(numbers, width, axis=1), ACTION_COSTS: np.repeat(numbers, 16, axis=1)}

    buffer.add(rows(0, 1, 2))
    assert len(buffer) == 3
    buffer.add(rows(3, 4, 5, 6))
    assert len(buffer) == 5
    assert sorted(buffer.sample(np.arange(5), CPU).costs[:, 0].tolist()) == [2, 3, 4, 5, 6]
    copy = DecisionBuffer(spec, ("context",), capacity=5)
    copy.restore(buffer.state())
    copy.add(rows(7))
    assert sorted(copy.sample(np.arange(5), CPU).costs[:, 0].tolist()) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("change", [{"algo": "dqn"}, {"engine": "sb3"}])
def test_only_ppo_and_futures_train_a_per_action_network(tmp_path, change):
    with pytest.raises(SettingsError, match=r"--architecture per_action works with --.* only"):
        hundredfold.train(
            "dvrp", save_dir=tmp_path, observation="offers", architecture="per_action", epochs=1, **change
        )


def test_futures_need_estimates_and_a_per_action_network():
    with pytest.raises(SettingsError, match="--future-samples"):
        make_learner(PPOSettings(advantages="futures"), env=DvrpSettings(num_customers=6, observation="offers"))
    with pytest.raises(SettingsError, match="per_action"):
        hundredfold.train("dvrp", **{**RUN, "architecture": "mlp"})


@pytest.mark.process
def test_a_run_that_learns_from_futures_resumes_bit_for_bit(tmp_path):
    whole = hundredfold.train("dvrp", save_dir=tmp_path, name="whole", **RUN)
    settings = {name: value for name, value in RUN.items() if name != "report"} | {"save_interval": 2}
    code = KILLED_RUN.format(env="dvrp", save_dir=str(tmp_path), settings=settings, moment="two epochs later")
    run_python(code, expect=-signal.SIGKILL)
    resumed = hundredfold.train(resume=tmp_path / "killed", report=False)
    assert resumed.finished
    assert_same_run(whole.path, resumed.path)


@pytest.mark.process
@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_learning_from_futures_is_the_same_on_every_backend(tmp_path, backend):
    one = hundredfold.train("dvrp", save_dir=tmp_path, name="one", **RUN)
    other = hundredfold.train("dvrp", save_dir=tmp_path, name="other", **{**RUN, "backend": backend, "workers": 2})
    assert_same_run(one.path, other.path)
