"""What envs in RLlib's runners have to say to the driver: RLlib ends a runner without its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hundredfold.core.faults import Failure, Health
from hundredfold.distributed.cluster import load_ray
from hundredfold.distributed.places import NODE_LABEL


class Letters:
    """The actor that keeps what was posted."""

    def __init__(self) -> None:
        self.health, self.last_words = Health(), ""

    def failed(self, failures: Sequence[Failure]) -> None:
        self.health.mended(failures)

    def gave_up(self, why: str) -> None:
        self.last_words = self.last_words or why

    def read(self) -> tuple[dict[str, int], str]:
        return self.health.counts(), self.last_words


class Postbox:
    """Travels with the settings of the envs; everybody posts to the same actor."""

    def __init__(self) -> None:
        ray = load_ray()
        # With the driver: no other node's end takes it along.
        here = {NODE_LABEL: ray.get_runtime_context().get_node_id()}
        letters = ray.remote(Letters).options(num_cpus=0, label_selector=here)
        self.letters: Any = letters.remote()

    def __deepcopy__(self, memory: Any) -> Postbox:
        return self

    def failed(self, failures: Sequence[Failure]) -> None:
        """Envs failed and were made anew."""
        self.letters.failed.remote(failures)

    def gave_up(self, why: str) -> None:
        """A runner is about to end."""
        load_ray().get(self.letters.gave_up.remote(why))

    def read(self) -> tuple[dict[str, int], str]:
        """What went wrong so far, and the last words of a runner that gave up."""
        found: tuple[dict[str, int], str] = load_ray().get(self.letters.read.remote())
        return found

    def close(self) -> None:
        load_ray().kill(self.letters, no_restart=True)
