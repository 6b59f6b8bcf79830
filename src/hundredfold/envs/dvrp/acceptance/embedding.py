"""Embedding type model: an embedding per customer and a small network that maps it to types.

It ignores trip purposes and takes types to be strict: a flexible side accepts every shift, an
inflexible one none. A response is then compatible with some types only; among those, the network's
own probabilities are the targets (generalised EM, one minibatch at a time). A variance penalty
keeps the embedding dimensions equally used, an entropy bonus keeps beliefs from closing too early.

A minibatch has only six distinct responses per customer, so it is turned into counts and the
network runs once per customer. With hand-written gradients a step takes less than half the time of
a loop over torch modules; tests compare them with automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, BoolArray, FloatArray, IntArray, State, fill
from hundredfold.core.errors import TrainingError
from hundredfold.envs.dvrp.acceptance.model import Responses, mixture_accept_rates, strict_accept_rates
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS, OfferTable
from hundredfold.envs.dvrp.population import NUM_TYPES

EMBEDDING_BRANCH: Final = 0x656D62656464
EMBEDDING_SIZE, HIDDEN_SIZE = 64, 128
VARIANCE_PENALTY, ENTROPY_BONUS = 0.4, 0.05
LEARNING_RATE, MAX_GRADIENT_NORM, BATCH_SIZE = 1e-3, 1.0, 64
# A refit needs so many responses of a customer, and so many customers and different offers.
MIN_RESPONSES, MIN_CUSTOMERS, MIN_OFFERS = 3, 2, 3
# Responses that strict types distinguish: earlier, later or both offered; refused or accepted.
NUM_PATTERNS: Final = 6
SHAPES: Final = {
    "weight_1": (HIDDEN_SIZE, EMBEDDING_SIZE),
    "bias_1": (HIDDEN_SIZE,),
    "weight_2": (HIDDEN_SIZE, HIDDEN_SIZE),
    "bias_2": (HIDDEN_SIZE,),
    "weight_3": (NUM_TYPES, HIDDEN_SIZE),
    "bias_3": (NUM_TYPES,),
}


@dataclass(slots=True)
class LossTerms:
    """Terms of the loss, means over some responses."""

    reconstruction: float
    variance_penalty: float
    entropy: float

    @property
    def loss(self) -> float:
        penalty = VARIANCE_PENALTY * self.variance_penalty
        return self.reconstruction + penalty - ENTROPY_BONUS * self.entropy


class EmbeddingTypeModel:
    """Type probabilities from a small network, trained further by every refit.

    Weights carry over from refit to refit; Adam is reset each time because the responses have
    changed. Customers with fewer than three responses are left out of a refit and believed to be
    like the mean of the others.

    Args:
        population_size: Number of customers.
        num_purposes: Number of trip purposes.
        seed: Seed of weights and minibatch order.
        device: Torch device of the refits.
        epochs: Passes over all responses in one refit.
        offers: The offers of the env.
    """

    def __init__(
        self,
        population_size: int,
        num_purposes: int,
        seed: int,
        device: str = "cpu",
        epochs: int = 50,
        offers: OfferTable = DEFAULT_OFFERS,
    ) -> None:
        self.population_size, self.epochs, self.offers = population_size, epochs, offers
        self.device = torch.device(device)
        self.key = rng.spawn(rng.seed_key(seed), EMBEDDING_BRANCH)
        self.accept_given_type: FloatArray = strict_accept_rates(num_purposes, offers)
        self.trip_accept_rates = np.zeros((0, offers.num_offers), np.float32)  # it remembers no trips
        self.beliefs = np.full((population_size, NUM_TYPES), 1.0 / NUM_TYPES)
        self.refits = np.zeros((), np.int64)
        self.weights = init_weights(population_size, self._generator(0))

    def ready(self, responses: Responses) -> bool:
        """Whether enough customers have enough responses to enough different offers."""
        customers = self._eligible(responses)
        offers = responses.offer[np.isin(responses.customer, customers)]
        return len(customers) >= MIN_CUSTOMERS and len(np.unique(offers)) >= MIN_OFFERS

    def refit(self, responses: Responses, should_stop: Callable[[], bool] = lambda: False) -> dict[str, float]:
        """Train on these responses; discarded if `should_stop` returns True between epochs."""
        self.refits += 1
        customers = self._eligible(responses)
        row = np.full(self.population_size, -1)
        row[customers] = np.arange(len(customers))
        row = row[responses.customer]
        code = row * NUM_PATTERNS + response_patterns(self.offers, responses.offer, responses.accepted)
        codes = torch.from_numpy(code[row >= 0]).to(self.device)
        weights = {**self.weights, "embeddings": self.weights["embeddings"][customers]}
        network = EmbeddingNetwork(weights, self.device)
        counts = torch.bincount(codes, minlength=len(customers) * NUM_PATTERNS)
        shares = counts.reshape(-1, NUM_PATTERNS) / len(codes)
        generator = self._generator(int(self.refits))
        losses = []
        for epoch in range(self.epochs):
            if should_stop():
                return {}
            order = torch.randperm(len(codes), generator=generator)
            network.epoch(codes[order.to(self.device)])
            if epoch in (0, self.epochs - 1):
                losses.append(network.losses(shares))
        first, last = losses[0], losses[-1]
        if not np.isfinite(last.loss):
            raise TrainingError(
                f"the loss of the embedding acceptance model is {last.loss:g} after refit "
                f"{int(self.refits)}; use --acceptance-model bayes."
            )
        self._adopt(network, customers)
        return {
            "acceptance/first_loss": first.loss,
            "acceptance/loss": last.loss,
            "acceptance/reconstruction": last.reconstruction,
            "acceptance/variance_penalty": last.variance_penalty,
            "acceptance/entropy": last.entropy,
        }

    def type_probabilities(self, customers: IntArray) -> FloatArray:
        """(customers, types)."""
        return np.asarray(self.beliefs[customers], np.float64)

    def accept_probabilities(self, customers: IntArray, purposes: IntArray, trips: IntArray) -> FloatArray:
        """(rows, offers) probability that each customer accepts each offer on each trip."""
        types = self.type_probabilities(customers)
        return mixture_accept_rates(types, self.accept_given_type, purposes)

    def state(self) -> Arrays:
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: State) -> None:
        fill(self._arrays(), state)

    def _eligible(self, responses: Responses) -> IntArray:
        """Customers with enough responses."""
        number = np.bincount(responses.customer, minlength=self.population_size)
        return np.flatnonzero(number >= MIN_RESPONSES)

    def _adopt(self, network: EmbeddingNetwork, customers: IntArray) -> None:
        """Take over the weights of a refit and update all beliefs."""
        for name, tensor in network.weights.items():
            learned = tensor.cpu().numpy()
            if name == "embeddings":
                self.weights[name][customers] = learned
            else:
                self.weights[name][...] = learned
        _, _, log_probs = network.forward(network.weights["embeddings"])
        probs = log_probs.exp().cpu().numpy().astype(np.float64)
        probs /= probs.sum(axis=1, keepdims=True)
        self.beliefs[:] = probs.mean(axis=0)
        self.beliefs[customers] = probs

    def _generator(self, number: int) -> torch.Generator:
        """Generator of one refit; 0 is for the initial weights. On the CPU for every device."""
        key = int(rng.spawn(self.key, number))
        return torch.Generator().manual_seed(key >> 1)

    def _arrays(self) -> Arrays:
        return {**self.weights, "beliefs": self.beliefs, "refits": self.refits}


class EmbeddingNetwork:
    """The network of one refit, with its gradient and Adam state in flat tensors.

    Adam (Kingma and Ba 2015) and gradient clipping then take one call each for all layers.

    Args:
        weights: Initial weights; `embeddings` has the rows of the refit's customers only.
        device: Torch device.
    """

    def __init__(self, weights: Arrays, device: torch.device) -> None:
        shapes = {name: array.shape for name, array in weights.items()}
        self.num_customers = len(weights["embeddings"])
        flat = np.concatenate([array.ravel() for array in weights.values()])
        self.flat = torch.from_numpy(flat).to(device)
        self.gradient = torch.zeros_like(self.flat)
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.steps = 0
        self.weights = _views(self.flat, shapes)
        self.gradients = _views(self.gradient, shapes)
        self.compatible = torch.from_numpy(compatible_types()).to(device)

    @torch.no_grad()
    def epoch(self, codes: Tensor) -> None:
        """One gradient step per minibatch of responses (`customer x 6 + pattern`), in order."""
        if self.num_customers <= BATCH_SIZE:
            for counts in self._minibatch_shares(codes):
                self.gradient_step(None, counts)
            return
        patterns = torch.nn.functional.one_hot(codes % NUM_PATTERNS, NUM_PATTERNS).float()
        rows_of = torch.split(codes // NUM_PATTERNS, BATCH_SIZE)
        for rows, counts in zip(rows_of, torch.split(patterns, BATCH_SIZE), strict=True):
            self.gradient_step(rows, counts / len(rows))

    @torch.no_grad()
    def losses(self, counts: Tensor) -> LossTerms:
        """Terms of the loss; `counts` (customers, patterns) sum to 1."""
        embeddings = self.weights["embeddings"]
        _, _, log_probs = self.forward(embeddings)
        targets = self.type_targets(log_probs.exp(), counts)
        entropy = -(log_probs.exp() * log_probs).sum(dim=1) @ counts.sum(dim=1)
        variance = embeddings.var(dim=0)
        return LossTerms(
            reconstruction=-float((targets * log_probs).sum()),
            variance_penalty=float(((variance / variance.mean() - 1.0) ** 2).sum()),
            entropy=float(entropy),
        )

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both hidden layers and the log-probabilities of the types."""
        weights = self.weights
        hidden_1 = torch.addmm(weights["bias_1"], rows, weights["weight_1"].t()).tanh_()
        hidden_2 = torch.addmm(weights["bias_2"], hidden_1, weights["weight_2"].t()).tanh_()
        logits = torch.addmm(weights["bias_3"], hidden_2, weights["weight_3"].t())
        return hidden_1, hidden_2, torch.log_softmax(logits, dim=1)

    def type_targets(self, probs: Tensor, counts: Tensor) -> Tensor:
        """(rows, types) E-step: target weight of each type; no gradient flows through it."""
        agreement = (probs @ self.compatible.t()).clamp_min_(1e-12)
        return probs * ((counts / agreement) @ self.compatible)

    def _minibatch_shares(self, codes: Tensor) -> tuple[Tensor, ...]:
        """The minibatches as (customers, patterns) shares, each summing to 1."""
        cells = self.num_customers * NUM_PATTERNS
        batch = torch.arange(len(codes), device=codes.device) // BATCH_SIZE
        number = -(-len(codes) // BATCH_SIZE)
        counts = torch.bincount(batch * cells + codes, minlength=number * cells)
        shares = counts.reshape(number, cells) / counts.reshape(number, cells).sum(1, keepdim=True)
        return shares.reshape(number, -1, NUM_PATTERNS).unbind()

    def gradient_step(self, rows: Tensor | None, counts: Tensor) -> None:
        """One clipped Adam step; `rows` are customers, None for all of them in order."""
        self._write_gradient(rows, counts)
        norm = torch.linalg.vector_norm(self.gradient)
        self.gradient *= (MAX_GRADIENT_NORM / (norm + 1e-6)).clamp_max_(1.0)
        self.steps += 1
        self.mean.lerp_(self.gradient, 0.1)
        self.square.mul_(0.999).addcmul_(self.gradient, self.gradient, value=0.001)
        unbias_mean, unbias_square = 1.0 - 0.9**self.steps, 1.0 - 0.999**self.steps
        scale = self.square.sqrt().mul_(unbias_square**-0.5).add_(1e-8)
        self.flat.addcdiv_(self.mean, scale, value=-LEARNING_RATE / unbias_mean)

    def _write_gradient(self, rows: Tensor | None, counts: Tensor) -> None:
        """Backpropagation by hand, from the logits down to the embeddings."""
        weights, gradients = self.weights, self.gradients
        embeddings = weights["embeddings"]
        inputs = embeddings if rows is None else embeddings[rows]
        hidden_1, hidden_2, log_probs = self.forward(inputs)
        probs = log_probs.exp()
        weight = counts.sum(dim=1, keepdim=True)
        p_log_p = probs * log_probs
        entropy_slope = p_log_p - probs * p_log_p.sum(dim=1, keepdim=True)
        targets = self.type_targets(probs, counts)
        back = weight * (probs + ENTROPY_BONUS * entropy_slope) - targets

        torch.mm(back.t(), hidden_2, out=gradients["weight_3"])
        torch.sum(back, 0, out=gradients["bias_3"])
        back = back @ weights["weight_3"]
        back.addcmul_(back * hidden_2, hidden_2, value=-1.0)
        torch.mm(back.t(), hidden_1, out=gradients["weight_2"])
        torch.sum(back, 0, out=gradients["bias_2"])
        back = back @ weights["weight_2"]
        back.addcmul_(back * hidden_1, hidden_1, value=-1.0)
        torch.mm(back.t(), inputs, out=gradients["weight_1"])
        torch.sum(back, 0, out=gradients["bias_1"])

        variance, centre = torch.var_mean(embeddings, dim=0)
        mean = variance.mean()
        excess = variance / mean - 1.0
        shift = (excess * variance).sum() / (EMBEDDING_SIZE * mean)
        slope = 2.0 * VARIANCE_PENALTY / mean * (excess - shift)
        scale = slope * (2.0 / (self.num_customers - 1))
        torch.mul(embeddings - centre, scale, out=gradients["embeddings"])
        if rows is None:
            gradients["embeddings"].addmm_(back, weights["weight_1"])
        else:
            gradients["embeddings"].index_add_(0, rows, back @ weights["weight_1"])


def init_weights(population_size: int, generator: torch.Generator) -> dict[str, Array]:
    """Initial weights like those of torch's layers: normal embeddings, uniform linear layers."""
    embeddings = torch.randn(population_size, EMBEDDING_SIZE, generator=generator).numpy()
    weights = {"embeddings": embeddings}
    for name, shape in SHAPES.items():
        inputs = EMBEDDING_SIZE if name.endswith("1") else HIDDEN_SIZE
        uniform = torch.rand(shape, generator=generator).numpy()
        weights[name] = ((2.0 * uniform - 1.0) * np.float32(inputs**-0.5)).astype(np.float32)
    return weights


def response_patterns(offers: OfferTable, offer: Array, accepted: BoolArray) -> IntArray:
    """(responses,) pattern of each response: sides offered (3) x refused or accepted (2)."""
    offered = offers.minutes[offer.astype(np.int64)] != 0.0
    sides = offered[:, 0] + 2 * offered[:, 1] - 1
    return np.asarray(np.where(accepted, 3, 0) + sides, np.int64)


def compatible_types() -> Array:
    """(patterns, types) 1 where a strict type would respond like that."""
    rates, offers = strict_accept_rates(1)[:, 0], DEFAULT_OFFERS
    largest = offers.largest_minutes
    sides = [offers.find(largest, 0), offers.find(0, largest), offers.find(largest, largest)]
    accepts = (rates[:, sides] > 0.5).T
    return np.concatenate([~accepts, accepts]).astype(np.float32)


def _views(flat: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    parts = torch.split(flat, sizes)
    return {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
