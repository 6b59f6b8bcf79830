"""Networks from files: the standard one, renamed and resized ones, and files with mistakes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold
from helpers.cage2_game import DEFENDER, ENTERPRISE0, ENTERPRISE1, ENTERPRISE2, OP_SERVER0, TRACES, USER0, USER2
from helpers.cage2_networks import SMALL_NETWORK, largest_network, renamed_network
from helpers.training_runs import assert_same_run, truncated_run
from hundredfold.cli.main import main
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cage2.array_pointers import ARRAY_POINTERS, NETWORK_POINTERS
from hundredfold.envs.cage2.baselines import make_policy
from hundredfold.envs.cage2.blue_actions import action_names
from hundredfold.envs.cage2.blue_agent import BlueAgent
from hundredfold.envs.cage2.conformance import verify
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.episodes import log_rows, record_episodes, replay_legend
from hundredfold.envs.cage2.evaluation import step_rewards
from hundredfold.envs.cage2.network import MAX_HOSTS, NONE
from hundredfold.envs.cage2.network_file import STANDARD, STANDARD_FILE, load_network, network_of
from hundredfold.envs.cage2.network_tables import ANALYSE_FIRST, network_tables
from hundredfold.envs.cage2.rendering import Cage2Rendering
from hundredfold.envs.cage2.state import CHANNELS
from hundredfold.envs.rendering import LastStep

ALL_CHANNELS = tuple(CHANNELS)
RUN = {
    **{"num_envs": 8, "num_steps": 16, "horizons": (20,), "hidden_sizes": (16,), "epochs": 4, "backend": "in_process"},
    **{"save_interval": 2, "eval_interval": 2, "eval_episodes": 4, "report": False},
}


@pytest.fixture(scope="module", params=["small", "largest"])
def network_file(request, tmp_path_factory):
    return SMALL_NETWORK if request.param == "small" else largest_network(tmp_path_factory.mktemp("network"))


@pytest.fixture(scope="module")
def renamed(tmp_path_factory):
    return renamed_network(tmp_path_factory.mktemp("network"))


def play(settings, num_envs=32, steps=120, seed=3):
    """Outputs of an env under random actions, after every step."""
    env = Cage2(np.arange(num_envs), settings)
    out = env.reset(seed)
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        yield env, out
        allowed = np.where(out.mask, generator.random(out.mask.shape), -1.0).argmax(axis=1)
        anything = generator.integers(0, env.spec.num_logits, num_envs)
        out = env.step(np.where(generator.random(num_envs) < 0.7, allowed, anything))


# --- the standard network


def test_the_standard_network_is_that_of_cage_challenge_2():
    tables = network_tables(STANDARD)
    assert (tables.num_hosts, len(tables.action_kind), STANDARD.num_bits) == (13, 145, 52)
    assert tables.cost_tenths.tolist() == [1, 10, 10, 10, 1, 1, 1, 10, 0, 1, 1, 1, 1]
    assert tables.linked_host.tolist() == [*[NONE] * 3, OP_SERVER0, *[NONE] * 5, *[ENTERPRISE1] * 2, *[ENTERPRISE0] * 2]
    assert STANDARD.opened_by == ((), (ENTERPRISE0, ENTERPRISE1, ENTERPRISE2), ())
    assert np.flatnonzero(~tables.defendable).tolist() == [DEFENDER, USER0]
    assert [STANDARD.subnets[subnet] for subnet in STANDARD.subnet_order] == ["User", "Enterprise", "Operational"]


def test_the_printed_file_is_the_standard_network(capsys, tmp_path):
    assert main(["envs", "cage2", "--network-file", "standard"]) == 0
    path = tmp_path / "copy.toml"
    path.write_text(capsys.readouterr().out)
    assert load_network(path) == STANDARD


def test_all_recorded_steps_are_equal_on_a_renamed_network(renamed):
    network = load_network(renamed)
    assert network != STANDARD
    assert network.host_names[USER2] == "site.User2"
    result = verify(TRACES, network_file=renamed)
    assert result.first_difference is None
    assert (result.steps_equal, result.steps_compared) == (50_300, 50_300)


@pytest.mark.parametrize("green", ["sleep", "scan"])
def test_a_renamed_network_has_the_same_trajectories(renamed, green):
    settings = Cage2Settings(channels=ALL_CHANNELS, action_mask="sensible", horizons=(30, 50), green=green)
    pairs = zip(play(settings), play(replace(settings, network_file=renamed)), strict=True)
    for step, ((_, one), (_, other)) in enumerate(pairs):
        for name, array in one.arrays().items():
            assert_array_equal(array, other.arrays()[name], err_msg=f"{name} before step {step}")


# --- other networks


@pytest.mark.parametrize("red", ["b_line", "meander"])
def test_games_on_other_networks_keep_to_the_rules(network_file, red):
    settings = Cage2Settings(
        network_file=network_file, red=red, channels=ALL_CHANNELS, action_mask="sensible", horizons=(100,)
    )
    network = settings.network
    tables, hosts = network_tables(network), network.num_hosts
    red_actions, reached = set(), np.zeros(hosts, bool)
    for env, out in play(settings):
        state = out.true_state
        assert out.mask.shape == (32, 2 + 11 * hosts)
        assert out.observation["bits"].shape == (32, 4 * hosts)
        assert out.mask[:, 0].all()
        assert not out.mask[:, 1].any()
        # Decoys that the mask allows can be installed.
        by_kind = out.mask[:, ANALYSE_FIRST:].reshape(32, 11, hosts)
        installable = tables.installable_decoys[np.arange(hosts), state["decoys"]]
        placeable = by_kind[:, 2:-1] <= (installable[:, None] >> np.arange(8)[:, None] & 1).astype(bool)
        assert placeable.all()
        # No forbidden action would remove red.
        may_remove, may_restore = by_kind[:, 1], by_kind[:, -1]
        assert not (state["user_removable"] > 0)[~may_remove & tables.defendable].any()
        assert not (state["n_sessions"] > 0)[~may_restore & tables.defendable].any()
        held = state["access"] == 2
        assert held[:, network.entry].all()
        assert ((state["access"] > 0) == (state["n_sessions"] > 0)).all()
        assert ((state["n_sessions"] > 0) <= (state["known"] > 0)).all()
        if env.hidden["step"][0] > 0:
            lost = held @ tables.cost_tenths + 100 * (state["ot_up"] == 0)
            extra = np.rint(-10 * out.reward).astype(int) - lost
            assert np.isin(extra, (0, 10)).all()  # a Restore
        red_actions |= set(out.info["red_action"].tolist())
        reached |= (state["n_sessions"] > 0).any(axis=0)
    assert {1, 2, 3, 4} <= red_actions
    assert reached.sum() > 3


def test_an_undefended_server_is_stopped_by_b_line(network_file):
    rewards = step_rewards(
        make_policy("sleep"), Cage2Settings(network_file=network_file, red="b_line", horizons=(100,)), 50, seed=1
    )
    assert (rewards[:, -1] <= -10).mean() > 0.8


def test_meander_sleeps_when_it_holds_all_that_it_knows(tmp_path):
    # Red knows the host that is revealed, but discovers its subnet while blue has closed it, and never tries again.
    text = Path(SMALL_NETWORK).read_text().replace('name = "Servers"', 'name = "Servers"\nopened_by = ["desk1"]')
    path = tmp_path / "closed.toml"
    path.write_text(text.replace('reveals = "files"', 'reveals = "mail"'))
    env = Cage2(np.arange(50), Cage2Settings(network_file=str(path), red="meander", horizons=(90,)))
    out = env.reset(0)
    generator, sleeps = np.random.default_rng(0), 0
    restore = action_names(env.network).index("Restore desk1")
    for _ in range(90):
        out = env.step(np.where(generator.random(50) < 0.5, restore, 0))
        sleeps += int((out.info["red_action"] == 0).sum())
    assert sleeps > 0


def test_training_resumes_and_evaluates_on_another_network(network_file, tmp_path, capsys):
    whole = hundredfold.train("cage2", network_file=network_file, save_dir=tmp_path, name="whole", **RUN)
    kept = whole.path / "data" / "network_file.toml"
    assert load_network(kept) == load_network(network_file)
    half = truncated_run(whole.path, 2)
    assert hundredfold.train(resume=half, report=False).finished
    assert_same_run(half, whole.path)
    assert main(["evaluate", str(whole.path), "--episodes", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["red"] for row in rows][-1] == "total"
    assert {row["policy"] for row in rows} == {str(whole.path)}
    assert main(["watch", str(whole.path), "--beside", "reactive", "--network-file", str(kept)]) == 0


def test_a_report_on_another_network_names_its_hosts_and_no_published_agents(tmp_path):
    run = hundredfold.train("cage2", network_file=SMALL_NETWORK, save_dir=tmp_path, **{**RUN, "report": True})
    page = (run.path / "report.html").read_text()
    assert "pumps" in page
    assert "Op_Server0" not in page
    assert "CardiffUni" not in page


def test_a_blue_agent_on_another_network_computes_what_the_env_shows():
    settings = Cage2Settings(
        network_file=SMALL_NETWORK,
        red="meander",
        green="scan",
        channels=("decoys", "decoy_counts", "scans", "scanned_decoys", "recency", "elapsed"),
        action_mask="sensible",
        horizons=(80,),
    )
    env = Cage2(np.arange(1), settings)
    generator, seen = np.random.default_rng(0), []

    class RandomPolicy:
        def act(self, observation, mask):
            seen.append((observation, mask))
            return np.array([generator.choice(np.flatnonzero(mask[0]))])

        def reset(self):
            pass

    agent = BlueAgent(RandomPolicy(), settings)
    out = env.reset(4)
    for _ in range(79):
        action = agent.act(out.observation["bits"][0])
        observation, mask = seen[-1]
        assert_array_equal(mask, out.mask)
        for name, array in observation.items():
            assert_array_equal(array, out.observation[name], err_msg=name)
        out = env.step(np.array([action]))


def test_all_names_are_those_of_the_network(capsys):
    network = load_network(SMALL_NETWORK)
    assert action_names(network)[2] == "Analyse kiosk"
    assert action_names(network)[-1] == "Restore pumps"
    settings = Cage2Settings(network_file=SMALL_NETWORK, red="b_line", horizons=(40,))
    rows = list(log_rows(record_episodes(make_policy("reactive", 0, network), settings, 2, seed=1)))
    text = json.dumps(rows)
    assert "desk" in text
    assert not re.search("User|Enterprise|Op_", text)
    legend = replay_legend(network)
    assert [host["name"] for host in legend["hosts"]] == list(network.host_names)
    assert legend["subnet_order"] == [0, 1, 2]
    env = Cage2(np.arange(1), settings)
    env.reset(0)
    picture = Cage2Rendering(env)
    assert "pumps" in picture.text(LastStep())
    assert picture.image(LastStep()).shape[2] == 3
    assert main(["envs", "cage2", "--network-file", SMALL_NETWORK, "--wide"]) == 0
    described = capsys.readouterr().out
    assert "desk2" in described
    assert "User1" not in described


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "network.toml"
    path.write_text(STANDARD_FILE.read_text())
    assert network_of(str(path)) == STANDARD
    path.write_text(STANDARD_FILE.read_text().replace("cost = 1.0", "cost = 2.5"))
    assert network_of(str(path)).hosts[OP_SERVER0].cost_tenths == 25


@pytest.mark.parametrize("policy", ["shipped", "RUN"])
def test_trained_policies_keep_their_network(policy, tmp_path, capsys):
    if policy == "RUN":
        policy = str(hundredfold.train("cage2", save_dir=tmp_path, **{**RUN, "epochs": 1}).path)
    assert main(["evaluate", "cage2", "--policy", policy, "--network-file", SMALL_NETWORK]) == 2
    assert "--network-file is for the baselines" in capsys.readouterr().err


# --- files with mistakes


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('entry = "User0"', 'entry = "User9"', r"entry is 'User9'; did you mean"),
        ('entry = "User0"', 'entry = "Op_Server0"', "cannot be both entry and server"),
        ('entry = "User0"', 'entry = "Op_Host0"', "Operational has the entry host, so it is open"),
        ('entry = "User0"', "", "the file has no entry"),
        ('entry = "User0"', 'entry = "User0"\ncolour = 1', "unknown key 'colour'"),
        ('relay = "Enterprise2"', 'relay = "Enterprise1"', "relay of b_line, Enterprise1, must reveal Op_Server0"),
        ('first = ["User1",', 'first = ["User0",', "b_line.first must name hosts of the entry host's subnet User"),
        ('first = ["User1",', 'first = ["Op_Host0",', "b_line.first must name hosts of the entry host's subnet"),
        ('first = ["User1", "User2", "User3", "User4"]', "first = []", "at least one host"),
        ('first = ["User1",', 'first = ["User2",', "names a host twice"),
        ('"Enterprise1", "Enterprise2"]\n\n[[', '"Enterprise1"]\n\n[[', "must open the subnet of Op_Server0"),
        ('reveals = "Enterprise0"', "", "it reveals no host"),
        ('reveals = "Enterprise0"', 'reveals = "Op_Host1"', "it reveals Op_Host1"),
        ("green = [", "green = []\nunused = [", "unknown key 'unused'"),
        ('green = ["User0"', 'green = ["Nobody"', "green is 'Nobody'"),
        ('name = "User2"', 'name = "User1"', "two hosts have the name User1"),
        ('name = "User2"', 'name = "User 2"', "letters, digits"),
        ('name = "User2"', "", r"number 11 of the hosts has no name"),
        ('subnet = "Operational"', 'subnet = "Enterprise"', "subnet Operational has no host"),
        ('name = "User0"\nsubnet = "User"', 'name = "User0"\nsubnet = "Enterprise"', "is out of order"),
        ('opened_by = ["Enterprise0", "Enterprise1", "Enterprise2"]', 'opened_by = ["Op_Host0"]', "never be reached"),
        ('system = "Windows"', 'system = "BeOS"', "must be Linux or Windows, got 'BeOS'"),
        ("cost = 1.0", "cost = 0.25", "at most one decimal, got 0.25"),
        ("cost = 1.0", "cost = -1", "got -1"),
        ("ports = [22, 53, 53, 68]", "ports = []", "1 to 32 port numbers"),
        ("ports = [22, 53, 53, 68]", "ports = [22, 70000]", "1 to 65535"),
        ('{ SSHBruteForce = "fails" }', '{ SSHBruteForce = "root" }', "must give user or fails, got 'root'"),
        ('{ SSHBruteForce = "fails" }', '{ BlueKeep = "root" }', "BlueKeep of host Defender needs port 3389"),
        ('{ SSHBruteForce = "fails" }', '{ SshForce = "user" }', "exploits of host Defender is 'SshForce'"),
        ("[[subnets]]", "[[subnet]]", "unknown key 'subnet'"),
        ("[b_line]", "[b_line", "is not valid TOML"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, old, new, message):
    text = STANDARD_FILE.read_text()
    assert old in text
    path = tmp_path / "wrong.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(SettingsError, match=message) as caught:
        Cage2(np.arange(1), Cage2Settings(network_file=str(path)))
    assert str(path) in str(caught.value)


def test_a_network_can_be_too_large(tmp_path):
    path = tmp_path / "large.toml"
    text = Path(largest_network(tmp_path)).read_text()
    path.write_text(text + text[text.rindex("[[hosts]]") :].replace("h7_6", "h7_7"))
    with pytest.raises(SettingsError, match=f"there must be 1 to {MAX_HOSTS} hosts, got {MAX_HOSTS + 1}"):
        load_network(path)


def test_a_missing_file_is_named():
    with pytest.raises(SettingsError, match=r"cannot read network file missing\.toml"):
        Cage2(np.arange(1), Cage2Settings(network_file="missing.toml"))


def test_kernels_of_the_standard_network_cannot_be_called_with_another():
    standard, other = (numba.from_dtype(dtype) for dtype in (ARRAY_POINTERS, NETWORK_POINTERS))
    assert other.can_convert_to(None, standard) is None
    assert standard.can_convert_to(None, other) is None
