"""Gradients of a minibatch that may be too large for the device: taken in pieces where they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from hundredfold.core.errors import TrainingError
from hundredfold.learners.samples import Samples


class Pieces:
    """Into how many pieces minibatches are cut: one, until the device's memory runs out.

    Losses are means over rows, so the pieces' gradients, weighted by their rows, add up to that of
    the whole: only rounding tells the difference.
    """

    def __init__(self) -> None:
        self.count = 1

    def backward(
        self,
        batch: Samples,
        loss_of: Callable[[Samples], Tensor],
        optimiser: torch.optim.Optimizer,
    ) -> float | Tensor:
        """Leave the loss's gradient in the optimiser's parameters; returns the loss."""
        while True:
            optimiser.zero_grad(set_to_none=True)
            try:
                return self._backward(batch, loss_of)
            except torch.OutOfMemoryError as error:
                if self.count >= len(batch):
                    raise TrainingError(
                        "a gradient step does not fit into the device's memory even one sample at "
                        "a time; use smaller networks (--hidden) or --device cpu."
                    ) from error
            self._halve(len(batch))

    def _backward(self, batch: Samples, loss_of: Callable[[Samples], Tensor]) -> float | Tensor:
        if self.count == 1:
            loss = loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        size = -(-len(batch) // self.count)
        whole = 0.0
        for start in range(0, len(batch), size):
            piece = batch.rows(start, start + size)
            loss = loss_of(piece) * (len(piece) / len(batch))
            loss.backward()  # type: ignore[no-untyped-call]
            whole += float(loss.detach())
        return whole

    def _halve(self, rows: int) -> None:
        self.count = min(2 * self.count, rows)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"a minibatch of {rows} did not fit into the device's memory; it is taken in "
            f"{self.count} pieces from now on. A smaller --minibatch-size does the same sooner.",
            stacklevel=2,
        )
