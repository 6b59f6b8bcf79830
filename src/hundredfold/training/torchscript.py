"""TorchScript modules of an exported policy: a traced policy that takes its arrays by name.

TorchScript's compiler reads annotations as objects, so this module does not postpone them.
"""

from typing import Any

from torch import Tensor, nn


class ByName(nn.Module):
    """For envs without masks."""

    names: list[str]

    def __init__(self, traced: Any, names: list[str]) -> None:
        super().__init__()
        self.traced, self.names = traced, names

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.traced([observation[name] for name in self.names])  # type: ignore[no-any-return]


class ByNameMasked(nn.Module):
    """For envs with masks."""

    names: list[str]

    def __init__(self, traced: Any, names: list[str]) -> None:
        super().__init__()
        self.traced, self.names = traced, names

    def forward(self, observation: dict[str, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.traced([observation[name] for name in self.names], mask)  # type: ignore[no-any-return]
