"""Settings of the backend `ray`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from hundredfold.core.bounds import NonNegative, NonNegativeInt, Positive, check_bounds

ActorBackend = Literal["auto", "in_process", "processes", "first_ready"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Which Ray cluster to use, and how its actors run envs."""

    address: str = ""
    """Ray cluster to join: auto, host:port or ray://host:port; empty = RAY_ADDRESS if it is set,
    else a new cluster on this machine that ends with the run."""
    policy_lag: Annotated[int, Interval(ge=0, le=1)] = 0
    """Age of the collecting policy in updates; 1 = collect the next rollout during the update
    (faster, slightly off-policy), 0 = collect with the newest weights."""
    actor_cpus: NonNegative = 1.0
    """CPU cores that Ray reserves for each actor."""
    actor_backend: ActorBackend = "auto"
    """Backend that runs the envs of an actor, as --backend on one machine."""
    fragment_timeout: Positive = 600.0
    """Seconds after which an actor that returns no rollout fragment counts as hung and is
    replaced."""
    placement_timeout: NonNegative = 5.0
    """Seconds to wait for free cores in the cluster before actors share cores."""
    object_store_mb: NonNegativeInt = 0
    """Object store size of a cluster started here, in MB; 0 = Ray's default."""

    def __post_init__(self) -> None:
        check_bounds(self)
