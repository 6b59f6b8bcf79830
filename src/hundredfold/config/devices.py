"""The device networks will run on, as far as settings depend on it."""

from __future__ import annotations

import os
import resource
import sys
import warnings
from dataclasses import dataclass
from typing import Literal

import torch

from hundredfold.backends.settings import usable_cores
from hundredfold.core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Device:
    """What there is to compute with."""

    kind: Literal["cpu", "cuda"]
    name: str
    cores: int  # that this process may use
    memory: int  # bytes of the machine's memory that are free
    own_memory: int  # the same of the device's own; a CPU has the machine's


def device_at_hand(asked: str = "auto") -> Device:
    """The device that a training asked to run there would get."""
    cores = usable_cores()
    place = pick_device(asked)
    if place.type == "cuda":
        free, _ = torch.cuda.mem_get_info(place)
        name = torch.cuda.get_device_name(place)
        return Device("cuda", name, cores, memory_at_hand(), free)
    return Device("cpu", "CPU", cores, memory_at_hand(), memory_at_hand())


def pick_device(asked: str) -> torch.device:
    """`auto` takes CUDA when it works; asking for CUDA in vain falls back with a warning."""
    try:
        device = torch.device("cuda" if asked == "auto" else asked)
    except RuntimeError as error:
        raise SettingsError(f"there is no device {asked!r}; use auto, cpu or cuda.") from error
    if device.type != "cuda":
        return device
    trouble = cuda_trouble(device)
    if trouble is None:
        return device
    if asked != "auto" or torch.cuda.is_available():
        warnings.warn(f"{trouble}; the networks run on the CPU.", stacklevel=2)
    return torch.device("cpu")


def cuda_trouble(device: torch.device) -> str | None:
    """Why CUDA cannot be used, in one sentence; None where it can."""
    if not torch.cuda.is_available():
        return "no CUDA device was found"
    try:
        # A driver may be there and still refuse: only a sum on the device itself tells.
        torch.ones(1, device=device).add_(1).cpu()
    except RuntimeError as error:
        return f"the CUDA device does not work ({str(error).splitlines()[0]})"
    return None


def memory_in_use(device: torch.device) -> int:
    """Bytes that this process holds: of the device's own memory, or of the machine's."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        # The most it ever held; elsewhere than on Linux this is all there is to ask. macOS counts
        # it in bytes.
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def memory_at_hand() -> int:
    """Bytes of the machine's memory that are free, as the system tells it."""
    try:
        with open("/proc/meminfo") as file:
            table = dict(line.split(":", 1) for line in file)
        return int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
