"""What one may say about a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hundredfold.core.errors import SettingsError

ActorBackend = Literal["auto", "in_process", "processes", "first_ready"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """How the backend ray finds its cluster and treats its actors."""

    address: str = ""
    """The Ray cluster to join: auto, host:port or ray://host:port; empty: the one RAY_ADDRESS
    names, or else one of our own on this machine, which ends with the run."""
    collect_lag: int = 0
    """1 collects the next rollout while the last one is learned from, with weights one update
    old; 0 collects with the newest weights."""
    actor_cpus: float = 1.0
    """Cores that Ray sets aside for each actor."""
    actor_backend: ActorBackend = "auto"
    """How an actor runs the envs it holds, as --backend has it on one machine."""
    fragment_timeout: float = 600.0
    """Seconds after which an actor that returns no rollout counts as hanging and is replaced."""
    place_timeout: float = 5.0
    """Seconds to wait for a free core in the cluster before actors share one."""
    object_store_mb: int = 0
    """Size of the object store of a cluster of our own, in MB; 0 leaves it to Ray."""

    def __post_init__(self) -> None:
        if self.collect_lag not in (0, 1):
            raise SettingsError(f"collect_lag is 0 or 1, got {self.collect_lag}.")
        for name in ("actor_cpus", "place_timeout", "object_store_mb"):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"{name} must not be negative, got {getattr(self, name)}.")
        if not self.fragment_timeout > 0:
            raise SettingsError(
                f"fragment_timeout must be above 0 seconds, got {self.fragment_timeout}."
            )
