"""Settings by device: every cell of the table, and devices that do not work."""

import pytest
import torch

from hundredfold.config import devices
from hundredfold.config.devices import Device, detect_device, torch_device
from hundredfold.config.presets import device_preset, preset_settings
from hundredfold.core.errors import SettingsError

CPU = Device("cpu", "CPU", cores=2, memory=8 * 2**30, device_memory=8 * 2**30)
# A stand-in for a card that is not here.
GPU = Device("cuda", "Tesla T4", cores=2, memory=8 * 2**30, device_memory=15 * 2**30)

TABLE = {
    ("ppo", GPU): {
        "backend": "processes", "num_envs": 8, "minibatch_size": 256, "num_steps": 512,
        "update_epochs": 10, "hidden_sizes": (256, 256),
    },
    ("ppo", CPU): {
        "backend": "in_process", "num_envs": 1, "minibatch_size": 64, "num_steps": 256,
        "update_epochs": 4, "hidden_sizes": (128, 128),
    },
    ("dqn", GPU): {
        "backend": "processes", "num_envs": 8, "batch_size": 128, "hidden_sizes": (256, 256, 256),
        "replay_size": 50_000,
    },
    ("dqn", CPU): {
        "backend": "in_process", "num_envs": 1, "batch_size": 32, "hidden_sizes": (128, 128),
        "replay_size": 10_000,
    },
}  # fmt: skip

CELLS = [(algo, device, name) for (algo, device), row in TABLE.items() for name in row]


@pytest.mark.parametrize(
    ("algo", "device", "name"), CELLS, ids=[f"{a}-{d.kind}-{n}" for a, d, n in CELLS]
)
@pytest.mark.parametrize("env", ["CartPole-v1", "cage2"])
def test_every_cell_of_the_table_is_as_it_says(env, algo, device, name):
    settings = device_preset(preset_settings(env), algo, device)
    parts = (settings.rollout, settings.learner, settings.network, settings.machine)
    (found,) = [getattr(part, name) for part in parts if hasattr(part, name)]
    assert found == TABLE[algo, device][name]


def test_the_table_is_read_for_the_device_at_hand(monkeypatch):
    monkeypatch.setattr("hundredfold.config.presets.detect_device", lambda asked: GPU)
    assert preset_settings("CartPole-v1", "by-device", "dqn").dqn.replay_size == 50_000
    monkeypatch.undo()
    assert preset_settings("CartPole-v1", "by-device", "dqn", "cpu").dqn.replay_size == 10_000


def test_a_machine_without_cuda_says_so_only_when_asked_for_it(recwarn, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert torch_device("auto") == torch.device("cpu")
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"no CUDA device was found; the networks run on the CPU"):
        assert torch_device("cuda") == torch.device("cpu")
    with pytest.raises(SettingsError, match="there is no device 'gpu'"):
        torch_device("gpu")


def test_a_device_that_is_there_but_does_not_work_falls_back_with_a_warning(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    real = torch.ones

    def refuse(*shape, device=None, **options):
        if device is not None and torch.device(device).type == "cuda":
            raise RuntimeError("CUDA error: no kernel image is available\nand a long story")
        return real(*shape, **options)

    monkeypatch.setattr(torch, "ones", refuse)
    with pytest.warns(UserWarning, match=r"does not work \(CUDA error: no kernel image"):
        assert torch_device("auto") == torch.device("cpu")


def test_the_device_at_hand_knows_its_cores_and_its_memory(monkeypatch):
    found = detect_device("cpu")
    assert found.kind == "cpu"
    assert found.cores >= 1
    assert found.memory > 2**20
    monkeypatch.setattr(devices, "torch_device", lambda asked: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (7, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: "Tesla T4")
    card = detect_device()
    assert (card.kind, card.name, card.cores) == ("cuda", "Tesla T4", found.cores)
    assert card.device_memory == 7
    assert card.memory > 2**20
