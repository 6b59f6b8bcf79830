"""Run folders that were damaged or come from strangers: settings, versions and absurd sizes."""

import shutil

import pytest

import hundredfold
from hundredfold.config.presets import preset_settings
from hundredfold.core.errors import CheckpointError, HundredfoldError
from hundredfold.training.run_folder import RunFolder


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


def test_every_changed_bit_of_the_settings_is_noticed_or_harmless(folder):
    """Within the words of the comment a change has no effect."""
    data = folder.settings_file.read_bytes()
    settings = folder.settings()
    unnoticed = 0
    for place in range(8 * len(data)):
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


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 100_000, "a." * 50_000 + "b = 1", "a = 1" + "0" * 10_000, "a = 1\n" * 300_000, "\xff"],
    ids=["nested lists", "nested tables", "many digits", "large", "no UTF-8"],
)
def test_settings_that_no_run_has_give_one_error(folder, text):
    folder.settings_file.write_bytes(text.encode("latin-1"))
    with pytest.raises(HundredfoldError, match=r"settings\.toml"):
        folder.settings()


def test_damaged_versions_do_not_stop_a_report(run):
    run.versions_file.write_text("{" * 100_000)
    path = hundredfold.api.write_run_report(run)
    assert "versions.json cannot be read" in path.read_text()


def test_a_network_too_large_for_its_weights_is_refused_before_memory_is_taken(run):
    text = run.settings_file.read_text()
    hidden = text[text.index("hidden_sizes") : text.index("]", text.index("hidden_sizes")) + 1]
    text = text.replace(hidden, "hidden_sizes = [10000000, 10000000]")
    run.settings_file.write_text(text[: text.rindex("# sha256")])
    with pytest.raises(CheckpointError, match="this network wants"):
        hundredfold.load(run.path)


def test_a_report_notices_damaged_metrics(run):
    data = run.metrics_file.read_bytes()
    run.metrics_file.write_bytes(data.replace(b'"epoch": 1', b'"epoch": 9'))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged"):
        hundredfold.api.write_run_report(run)
