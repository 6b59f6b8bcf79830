"""The by-device preset, device detection and fallback to the CPU."""

import pytest
import torch

from hundredfold.config import devices
from hundredfold.config.devices import Device, detect_device, torch_device
from hundredfold.config.presets import device_preset, preset_settings
from hundredfold.core.errors import SettingsError

CPU = Device("cpu", "CPU", cores=2, memory=8 * 2**30, device_memory=8 * 2**30)
# A GPU that this machine need not have.
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


@pytest.mark.parametrize(("algo", "device", "name"), CELLS, ids=[f"{a}-{d.kind}-{n}" for a, d, n in CELLS])
@pytest.mark.parametrize("env", ["CartPole-v1", "cage2"])
def test_by_device_preset_has_the_documented_values(env, algo, device, name):
    settings = device_preset(preset_settings(env), algo, device)
    tables = (settings.rollout, settings.learner, settings.network, settings.machine)
    (value,) = [getattr(table, name) for table in tables if hasattr(table, name)]
    assert value == TABLE[algo, device][name]


def test_by_device_preset_follows_the_detected_device(monkeypatch):
    monkeypatch.setattr("hundredfold.config.presets.detect_device", lambda requested: GPU)
    assert preset_settings("CartPole-v1", "by-device", "dqn").dqn.replay_size == 50_000
    monkeypatch.undo()
    assert preset_settings("CartPole-v1", "by-device", "dqn", "cpu").dqn.replay_size == 10_000


def test_missing_cuda_warns_only_when_requested(recwarn, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert torch_device("auto") == torch.device("cpu")
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"no CUDA device was found; the networks run on the CPU"):
        assert torch_device("cuda") == torch.device("cpu")
    with pytest.raises(SettingsError, match="there is no device 'gpu'"):
        torch_device("gpu")


def test_a_cuda_device_that_fails_falls_back_to_the_cpu_with_a_warning(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ones = torch.ones

    def fail_on_cuda(*shape, device=None, **options):
        if device is not None and torch.device(device).type == "cuda":
            raise RuntimeError("CUDA error: no kernel image is available\nfurther lines")
        return ones(*shape, **options)

    monkeypatch.setattr(torch, "ones", fail_on_cuda)
    with pytest.warns(UserWarning, match=r"does not work \(CUDA error: no kernel image"):
        assert torch_device("auto") == torch.device("cpu")


def test_device_detection_reports_cores_and_memory(monkeypatch):
    cpu = detect_device("cpu")
    assert cpu.kind == "cpu"
    assert cpu.cores >= 1
    assert cpu.memory > 2**20
    monkeypatch.setattr(devices, "torch_device", lambda requested: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    gpu = detect_device()
    assert (gpu.kind, gpu.name, gpu.cores) == ("cuda", "Tesla T4", cpu.cores)
    assert gpu.device_memory == 7
    assert gpu.memory > 2**20
