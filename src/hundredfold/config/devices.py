"""Devices of the networks: which one there is, and the memory it has."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import psutil
import torch

from hundredfold.backends.settings import usable_cores
from hundredfold.core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Device:
    """Compute resources that settings depend on."""

    kind: Literal["cpu", "cuda"]
    name: str
    cores: int  # usable by this process
    memory: int  # bytes of free main memory
    device_memory: int  # bytes of free memory of the device; a CPU uses main memory


def detect_device(requested: str = "auto") -> Device:
    """The device that a training with `--device requested` runs on."""
    cores = usable_cores()
    device = torch_device(requested)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        return Device("cuda", name, cores, available_memory(), free)
    return Device("cpu", "CPU", cores, available_memory(), available_memory())


def torch_device(requested: str) -> torch.device:
    """The torch device for auto, cpu or cuda.

    `auto` takes CUDA when it works; if CUDA was requested and does not work, a warning says why and
    the CPU is used.
    """
    try:
        device = torch.device("cuda" if requested == "auto" else requested)
    except RuntimeError as error:
        raise SettingsError(f"there is no device {requested!r}; use auto, cpu or cuda.") from error
    if device.type != "cuda":
        return device
    reason = cuda_error(device)
    if reason is None:
        return device
    if requested != "auto" or torch.cuda.is_available():
        warnings.warn(f"{reason}; the networks run on the CPU.", stacklevel=2)
    return torch.device("cpu")


def cuda_error(device: torch.device) -> str | None:
    """Why CUDA cannot be used, in one sentence; None where it can."""
    if not torch.cuda.is_available():
        return "no CUDA device was found"
    try:
        # A driver may be present and still fail: only an operation on the device tells.
        torch.ones(1, device=device).add_(1).cpu()
    except RuntimeError as error:
        return f"the CUDA device does not work ({str(error).splitlines()[0]})"
    return None


def memory_used(device: torch.device) -> int:
    """Bytes that this process holds: of the device's own memory, or of main memory."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def available_memory() -> int:
    """Bytes of main memory that are free for this process."""
    return int(psutil.virtual_memory().available)
