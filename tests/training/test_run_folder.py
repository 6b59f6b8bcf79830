"""Run folders that were damaged or come from strangers: settings, versions and absurd sizes."""

import os
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import gymnasium
import pytest

import hundredfold
from hundredfold.cli.main import COMMANDS, main
from hundredfold.config.presets import preset_settings
from hundredfold.config.toml import to_table
from hundredfold.core.errors import CheckpointError, HundredfoldError, SettingsError
from hundredfold.core.files import sealed_json
from hundredfold.training.auto_config import auto_configure_once
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.trust import executed_by


@pytest.fixture
def folder(tmp_path):
    found = RunFolder.create(preset_settings("corridor"), tmp_path, "run")
    found.release()
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    settings = {"epochs": 2, "num_envs": 4, "num_steps": 8, "eval_interval": 0}
    return hundredfold.train("corridor", save_dir=tmp_path_factory.mktemp("runs"), **settings).path


@pytest.fixture
def run(trained, tmp_path):
    return RunFolder(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize("bits_per_byte", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_every_changed_bit_of_the_settings_is_noticed_or_harmless(folder, bits_per_byte):
    """Within the words of the comment a change has no effect. Every bit of the checksum, and some of each byte."""
    data = folder.settings_file.read_bytes()
    settings = folder.settings()
    unnoticed = 0
    checksum = data.rindex(b"\n", 0, -1)
    bits = {
        byte: range(8) if byte > checksum else [(byte + n) % 8 for n in range(bits_per_byte)]
        for byte in range(len(data))
    }
    for place in [8 * byte + bit for byte, chosen in bits.items() for bit in chosen]:
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        folder.settings_file.write_bytes(changed)
        try:
            assert folder.settings() == settings
            unnoticed += 1
        except HundredfoldError:
            pass
    assert unnoticed <= 8 * len("# sha256 of the lines above: ")


def test_edited_settings_are_refused_until_the_checksum_is_removed(folder):
    text = folder.settings_file.read_text().replace("gamma = 0.99", "gamma = 0.5")
    folder.settings_file.write_text(text)
    with pytest.raises(CheckpointError, match=r"checksum does not match.*delete its last line"):
        folder.settings()
    folder.settings_file.write_text(text[: text.rindex("# sha256")])
    assert folder.settings().ppo.gamma == 0.5


ODD_SETTINGS = {
    "nested lists": "a = " + "[" * 100_000,
    "nested tables": "a." * 50_000 + "b = 1",
    "nested inline tables": "c = {" + "a . 'b' ." * 20_000 + "b = 1}",
    "many digits": "a = 1" + "0" * 10_000,
    "large": "a = 1\n" * 300_000,
    "no UTF-8": "\xff",
}


@pytest.mark.parametrize("text", ODD_SETTINGS.values(), ids=ODD_SETTINGS)
def test_settings_that_no_run_has_give_one_error(folder, text):
    folder.settings_file.write_bytes(text.encode("latin-1"))
    with pytest.raises(HundredfoldError, match=r"settings\.toml"):
        folder.settings()


def test_damaged_versions_do_not_stop_a_report(run):
    run.versions_file.write_text("{" * 100_000)
    path = hundredfold.api.write_run_report(run)
    assert "versions.json cannot be read" in path.read_text()


def make_link(path):
    path.unlink()
    path.symlink_to("/dev/zero")


VERSIONS_DAMAGE = {
    "nested": lambda path: path.write_text("{" * 100_000),
    "bits": lambda path: path.write_bytes(path.read_bytes().replace(b"hundredfold", b"hundredgold")),
    "list": lambda path: path.write_text("[1]"),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "empty": lambda path: path.write_bytes(b""),
    "link": make_link,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", VERSIONS_DAMAGE.values(), ids=VERSIONS_DAMAGE)
def test_versions_that_are_damaged_while_a_run_trains_do_not_fail_it_at_its_end(tmp_path, damage):
    run = hundredfold.train(
        "corridor",
        save_dir=tmp_path,
        on_epoch=lambda epoch: damage(RunFolder(epoch.path).versions_file),
        **{"epochs": 1, "num_envs": 2, "num_steps": 4, "eval_interval": 0},
    )
    assert run.finished
    assert RunFolder(run.path).report_file.exists()
    assert hundredfold.train(resume=run.path, epochs=2, report=False).finished


def test_a_network_too_large_for_its_weights_is_refused_before_memory_is_taken(run):
    text = run.settings_file.read_text()
    hidden = text[text.index("hidden_sizes") : text.index("]", text.index("hidden_sizes")) + 1]
    text = text.replace(hidden, "hidden_sizes = [1000000, 1000000]")
    run.settings_file.write_text(text[: text.rindex("# sha256")])
    with pytest.raises(CheckpointError, match="this network wants"):
        hundredfold.load(run.path)


def test_a_report_notices_damaged_metrics(run):
    data = run.metrics_file.read_bytes()
    run.metrics_file.write_bytes(data.replace(b'"epoch": 1', b'"epoch": 9'))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged"):
        hundredfold.api.write_run_report(run)


# --- trust

THIRD_PARTY = {"epochs": 2, "num_envs": 2, "num_steps": 8, "eval_interval": 0, "backend": "in_process"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data directory of the user's own, and a module with an env that notes when it is imported."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "strange_env.py").write_text(
        "import gymnasium\ngymnasium.register('Strange-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    yield tmp_path / "home"
    sys.modules.pop("strange_env", None)
    gymnasium.registry.pop("Strange-v0", None)


@pytest.fixture
def own_run(home, tmp_path):
    run = hundredfold.train("strange_env:Strange-v0", save_dir=tmp_path, name="own", report=False, **THIRD_PARTY)
    sys.modules.pop("strange_env")
    return run.path


def test_own_runs_need_no_trust(own_run):
    assert len(hundredfold.evaluate(own_run, episodes=2).returns) == 2
    assert hundredfold.train(resume=own_run, epochs=3, report=False).finished


def test_a_module_that_only_a_copied_run_names_is_not_imported(own_run, tmp_path, capsys):
    """Also if the copy has the code of the original folder."""
    strange = shutil.copytree(own_run, tmp_path / "downloaded")
    assert (strange / ".origin").is_file()
    make_vec, resume = (
        (lambda run: hundredfold.make_vec(run=run)),
        (lambda run: hundredfold.train(resume=run, epochs=3)),
    )
    for use in (hundredfold.evaluate, make_vec, resume):
        with pytest.raises(SettingsError, match=r"imports the Python module 'strange_env'.*--trust-run"):
            use(strange)
    for command in ("evaluate", "watch", "train --resume", "train --eval --resume"):
        assert main([*command.split(), str(strange)]) == 2
        assert "--trust-run" in capsys.readouterr().err
    assert "strange_env" not in sys.modules


def test_a_policy_is_loaded_exported_and_reported_without_trust(own_run, tmp_path):
    strange = shutil.copytree(own_run, tmp_path / "downloaded")
    assert hundredfold.load(strange).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    for argv in (["report", strange], ["export", strange, "--torchscript"]):
        assert main([str(argument) for argument in argv]) == 0
    assert "strange_env" not in sys.modules


def test_commands_on_another_env_import_nothing_that_a_run_names(own_run, tmp_path, capsys):
    strange = shutil.copytree(own_run, tmp_path / "downloaded")
    commands = (
        ["serve", "--port", "0", "--quiet"],
        ["quote", "--request", "rider=Ada", "--policy", "none"],
        ["train", "CartPole-v1", "--num-envs", "2", "--init-from"],
        *(["evaluate", env, "--policy"] for env in ("dvrp", "cage2")),
        *(["watch", env, "--policy"] for env in ("dvrp", "cage2")),
        *(["watch", env, "--policy", policy, "--beside"] for env, policy in (("dvrp", "none"), ("cage2", "sleep"))),
    )
    for argv in commands:
        assert main([*argv, str(strange)]) == 2
        assert "strange_env:Strange-v0" in capsys.readouterr().err
    assert "strange_env" not in sys.modules


def test_a_comparison_continues_no_run_that_names_another_env_or_cluster(home, tmp_path, capsys):
    common = ["compare", "corridor", "--save-dir", str(tmp_path), "--seeds", "1", "--num-envs", "2", "--steps", "64"]
    argv = [*common, "--arm", "a: --learning-rate 0.1", "--arm", "b: --learning-rate 0.2"]
    own = preset_settings("corridor")
    ray = replace(own, machine=replace(own.machine, backend="ray"), ray=replace(own.ray, address="ray://stranger:1"))
    for changed, named in ((preset_settings("strange_env:Strange-v0"), "env"), (ray, "ray.address")):
        folder = RunFolder.create(changed, tmp_path, f"a-seed-{own.seed}")
        folder.release()
        assert main(argv) == 2
        message = capsys.readouterr().err
        assert "was trained with other settings" in message
        assert named in message.partition("(")[2].partition(")")[0].split(", ")
        shutil.rmtree(folder.path)
    assert "strange_env" not in sys.modules


def test_fitted_settings_in_a_file_name_nothing_to_import_or_join(home, tmp_path):
    """Of a comparison or a sweep in a folder that somebody else made."""
    asked = preset_settings("CartPole-v1")
    strange = replace(
        preset_settings("strange_env:Strange-v0"),
        env_settings=replace(asked.env_settings, env_kwargs=("path=/",)),
        machine=replace(asked.machine, backend="ray"),
        ray=replace(asked.ray, address="ray://stranger:1"),
        rollout=replace(asked.rollout, num_envs=3),
    )
    assert set(executed_by(strange)) == {"env", "env_kwargs", "address"}
    file = tmp_path / "fitted.json"
    file.write_text(sealed_json({"requested": to_table(asked), "fitted": to_table(strange)}))
    fitted, _ = auto_configure_once(asked, (), file)
    assert fitted.rollout.num_envs == 3
    assert fitted.env == "CartPole-v1"
    assert executed_by(fitted) == {}


def test_the_table_of_what_is_executed_has_every_command(run, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "runs.md").read_text("utf-8")
    table = text.partition("| command | executes |")[2].partition("\n\n")[0]
    assert set(COMMANDS) <= {span.split()[0] for span in re.findall(r"`([^`]+)`", table)}
    *_, last = table.splitlines()
    assert last.endswith("| open no run folder |")
    opened = []
    monkeypatch.setattr(RunFolder, "settings_table", lambda folder: opened.append(folder))
    for command in re.findall(r"`([^`]+)`", last):
        with suppress(SystemExit):  # of wrong usage
            main([command, str(run.path)])
    assert not opened


def test_trust_is_given_by_a_flag_or_by_naming_the_env(own_run, tmp_path):
    strange = shutil.copytree(own_run, tmp_path / "downloaded")
    assert main(["evaluate", str(strange), "--episodes", "2", "--trust-run"]) == 0
    hundredfold.make_vec(run=strange, trust_run=True).close()
    named = ["train", "strange_env:Strange-v0", "--resume", str(strange), "--epochs", "3", "--quiet"]
    assert main(named) == 0
    # Having trained it further here makes it the user's own.
    assert len(hundredfold.evaluate(strange, episodes=2).returns) == 2


@pytest.mark.parametrize("forged", ["0" * 64, "", "link"])
def test_a_forged_origin_is_not_trusted(own_run, tmp_path, forged):
    strange = shutil.copytree(own_run, tmp_path / "downloaded")
    (strange / ".origin").unlink()
    if forged == "link":
        (strange / ".origin").symlink_to(own_run / ".origin")
    else:
        (strange / ".origin").write_text(forged)
    with pytest.raises(SettingsError, match="trust"):
        hundredfold.evaluate(strange)


def test_changed_settings_of_an_own_run_lose_its_trust(home, tmp_path):
    run = hundredfold.train("CartPole-v1", save_dir=tmp_path, report=False, **THIRD_PARTY)
    folder = RunFolder.open(run.path)
    text = folder.settings_file.read_text().replace('"CartPole-v1"', '"strange_env:Strange-v0"')
    folder.settings_file.write_text(text[: text.rindex("# sha256")])
    with pytest.raises(SettingsError, match="trust"):
        hundredfold.evaluate(run.path)


def test_without_a_home_runs_need_trust(own_run, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/no/such/directory")
    with pytest.raises(SettingsError, match="trust"):
        hundredfold.evaluate(own_run)
    assert len(hundredfold.evaluate(own_run, episodes=2, trust_run=True).returns) == 2


def test_the_key_is_made_once_and_only_the_user_can_read_it(own_run, home):
    key = home / "hundredfold" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    assert len(before) == 32
    hundredfold.train(resume=own_run, epochs=3, report=False)
    assert key.read_bytes() == before
    assert os.listdir(key.parent) == ["key"]


def test_a_ray_address_that_only_the_run_names_is_not_joined(run, monkeypatch):
    """Neither one in its settings nor one that waits there until the user asks for Ray."""
    joined = []
    monkeypatch.setattr("hundredfold.distributed.placement.connect", lambda *settings: joined.append(settings))
    settings = run.settings()
    run.write_settings(replace(settings, ray=replace(settings.ray, address="ray://stranger:10001")))
    with pytest.raises(SettingsError, match="joins the Ray cluster 'ray://stranger:10001'"):
        hundredfold.train(resume=run.path, epochs=3, backend="ray")
    machine = replace(settings.machine, backend="ray")
    run.write_settings(replace(settings, machine=machine, ray=replace(settings.ray, address="ray://stranger:10001")))
    with pytest.raises(SettingsError, match="joins the Ray cluster"):
        hundredfold.train(resume=run.path, epochs=3)
    assert not joined


def test_arguments_that_only_the_run_names_are_not_passed_to_third_party_code(home, tmp_path):
    run = hundredfold.train(
        "FrozenLake-v1", save_dir=tmp_path, name="own", report=False, env_kwargs=("is_slippery=false",), **THIRD_PARTY
    )
    assert hundredfold.evaluate(run.path, episodes=2)
    strange = shutil.copytree(run.path, tmp_path / "downloaded")
    with pytest.raises(SettingsError, match="passes 'is_slippery=false' to FrozenLake-v1"):
        hundredfold.evaluate(strange)


@pytest.fixture
def with_data(tmp_path):
    """A run folder with copies of two data files, whose originals are gone."""
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f"content of {name}")
    plain = preset_settings("dvrp")
    files = replace(plain.env_settings, trips=str(tmp_path / "a.csv"), travel_times=str(tmp_path / "b.csv"))
    found = RunFolder.create(replace(plain, env_settings=files), tmp_path, "run")
    found.release()
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).unlink()
    return found


def test_a_run_uses_its_own_copies_of_data_files_wherever_it_is(with_data, tmp_path):
    assert with_data.settings().env_settings.trips == str(with_data.path / "data" / "trips.csv")
    moved = RunFolder(with_data.path.rename(tmp_path / "moved"))
    kept = moved.settings().env_settings
    assert kept.trips == str(moved.path / "data" / "trips.csv")
    assert Path(kept.travel_times).read_text() == "content of b.csv"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: (data / "trips.csv").write_text("content of A.csv"), "trips.csv was changed after"),
        (lambda data: (data / "travel_times.csv").unlink(), "travel_times.csv: No such file"),
        (lambda data: (data / "checksums.json").write_text("{}"), "its checksum does not match"),
        (
            lambda data: (data / "trips.csv").rename(data / "x") and (data / "trips.csv").symlink_to("x"),
            "symbolic link",
        ),
    ],
    ids=["changed", "missing", "checksums", "link"],
)
def test_changed_data_of_a_run_is_refused(with_data, damage, message):
    damage(with_data.data)
    with pytest.raises(CheckpointError, match=message):
        with_data.settings()
