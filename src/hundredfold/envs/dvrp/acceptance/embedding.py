"""The network acceptance model: an embedding of every person, and from it the chance of each type.

It knows no purposes and takes types for strict: a flexible side accepts everything, a stiff one
nothing. An answer is then possible for some types and impossible for others; among the possible
ones the network's own odds decide which types it is taught (expectation-maximisation, one
minibatch at a time). Two terms keep embeddings spread out and odds from closing too early.

A minibatch holds only as many different questions as there are people times six, so it is turned
into counts and the network runs once per person. With the gradient written out, a step takes less
than half the time of a plain loop over modules; tests hold it against automatic differentiation.

A refit beside everything else, on copies, so that nobody sees it half done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, BoolArray, FloatArray, IntArray, State, fill
from hundredfold.core.errors import TrainingError
from hundredfold.envs.dvrp.acceptance.bayes import mixed
from hundredfold.envs.dvrp.acceptance.model import TypeModel
from hundredfold.envs.dvrp.acceptance.prior import strict_rates
from hundredfold.envs.dvrp.acceptance.responses import Responses
from hundredfold.envs.dvrp.offers import OFFER_MINUTES
from hundredfold.envs.dvrp.population import NUM_TYPES

EMBEDDING_BRANCH: Final = 0x656D62656464
WIDTH, HIDDEN = 64, 128
EVENNESS, ENTROPY_BONUS = 0.4, 0.05
LEARNING_RATE, MAX_GRADIENT_NORM, BATCH = 1e-3, 1.0, 64
MIN_ANSWERS, MIN_PEOPLE, MIN_OFFERS = 3, 2, 3
# What an answer looks like to strict types: earlier, later or both were asked; refused, accepted.
NUM_PATTERNS: Final = 6
SHAPES: Final = {
    "weight_1": (HIDDEN, WIDTH),
    "bias_1": (HIDDEN,),
    "weight_2": (HIDDEN, HIDDEN),
    "bias_2": (HIDDEN,),
    "weight_3": (NUM_TYPES, HIDDEN),
    "bias_3": (NUM_TYPES,),
}


@dataclass(slots=True)
class Components:
    """Mean losses over some answers."""

    reconstruction: float
    evenness: float
    entropy: float

    @property
    def loss(self) -> float:
        return self.reconstruction + EVENNESS * self.evenness - ENTROPY_BONUS * self.entropy


class Embedding:
    """Type probabilities from a small network that every refit teaches further.

    Weights carry over from refit to refit; Adam starts afresh each time, as the answers have
    changed under it. People with fewer than three answers sit a refit out and are believed to be
    like the mean of the others.
    """

    def __init__(
        self, num_people: int, num_purposes: int, seed: int, device: str = "cpu", epochs: int = 50
    ) -> None:
        self.num_people, self.epochs = num_people, epochs
        self.device = torch.device(device)
        self.key = rng.spawn(rng.seed_key(seed), EMBEDDING_BRANCH)
        self.accept_given_type: FloatArray = strict_rates(num_purposes)
        self.beliefs = np.full((num_people, NUM_TYPES), 1.0 / NUM_TYPES)
        self.refits = np.zeros((), np.int64)
        self.weights = first_weights(num_people, self._generator(0))

    def ready(self, answers: Responses) -> bool:
        """Whether there are enough people with enough answers to enough different offers."""
        people = self._people(answers)
        known = np.isin(answers.person, people)
        return len(people) >= MIN_PEOPLE and len(np.unique(answers.offer[known])) >= MIN_OFFERS

    def refit(
        self, answers: Responses, stopped: Callable[[], bool] = lambda: False
    ) -> dict[str, float]:
        """Teach the network these answers; between epochs `stopped` may end it, unfinished."""
        self.refits += 1
        people = self._people(answers)
        place = np.full(self.num_people, -1)
        place[people] = np.arange(len(people))
        known = place[answers.person] >= 0
        question = place[answers.person] * NUM_PATTERNS + patterns(answers.offer, answers.accepted)
        questions = torch.from_numpy(question[known]).to(self.device)
        table = {**self.weights, "table": self.weights["table"][people]}
        network = Descent(table, self.device)
        counts = torch.bincount(questions, minlength=len(people) * NUM_PATTERNS)
        whole = counts.reshape(-1, NUM_PATTERNS) / len(questions)
        generator = self._generator(int(self.refits))
        parts = []
        for epoch in range(self.epochs):
            if stopped():
                return {}
            order = torch.randperm(len(questions), generator=generator)
            network.epoch(questions[order.to(self.device)])
            if epoch in (0, self.epochs - 1):
                parts.append(network.losses(whole))
        first, last = parts[0], parts[-1]
        if not np.isfinite(last.loss):
            raise TrainingError(
                f"the acceptance model's network came out with loss {last.loss:g} after refit "
                f"{int(self.refits)}; use --acceptance-model bayes."
            )
        self._take(network, people)
        return {
            "acceptance/first_loss": first.loss,
            "acceptance/loss": last.loss,
            "acceptance/reconstruction": last.reconstruction,
            "acceptance/evenness": last.evenness,
            "acceptance/entropy": last.entropy,
        }

    def type_probabilities(self, people: IntArray) -> FloatArray:
        """(people, types)."""
        return np.asarray(self.beliefs[people], np.float64)

    def accept_probabilities(self, people: IntArray, purposes: IntArray) -> FloatArray:
        """(rows, offers) the chance that these people accept each offer."""
        return mixed(self.type_probabilities(people), self.accept_given_type, purposes)

    def state(self) -> Arrays:
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: State) -> None:
        fill(self._arrays(), state)

    def _people(self, answers: Responses) -> IntArray:
        """Who has given enough answers."""
        number = np.bincount(answers.person, minlength=self.num_people)
        return np.flatnonzero(number >= MIN_ANSWERS)

    def _take(self, network: Descent, people: IntArray) -> None:
        """Bring home what was learned."""
        for name, tensor in network.weights.items():
            learned = tensor.cpu().numpy()
            if name == "table":
                self.weights[name][people] = learned
            else:
                self.weights[name][...] = learned
        _, _, log_odds = network.forward(network.weights["table"])
        odds = log_odds.exp().cpu().numpy().astype(np.float64)
        odds /= odds.sum(axis=1, keepdims=True)
        self.beliefs[:] = odds.mean(axis=0)
        self.beliefs[people] = odds

    def _generator(self, number: int) -> torch.Generator:
        """The luck of one refit; 0 is for the first weights. Drawn on the CPU for any device."""
        key = int(rng.spawn(self.key, number))
        return torch.Generator().manual_seed(key >> 1)

    def _arrays(self) -> Arrays:
        return {**self.weights, "beliefs": self.beliefs, "refits": self.refits}


class Descent:
    """One refit's worth of gradient steps on weights that lie side by side in one tensor.

    Adam and the norm of the gradient then take one call each, whatever the number of layers.
    """

    def __init__(self, weights: Arrays, device: torch.device) -> None:
        shapes = {name: array.shape for name, array in weights.items()}
        self.num_people = len(weights["table"])
        flat = np.concatenate([array.ravel() for array in weights.values()])
        self.flat = torch.from_numpy(flat).to(device)
        self.gradient = torch.zeros_like(self.flat)
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.steps = 0
        self.weights = _views(self.flat, shapes)
        self.gradients = _views(self.gradient, shapes)
        self.possible = torch.from_numpy(possible_types()).to(device)

    @torch.no_grad()
    def epoch(self, questions: Tensor) -> None:
        """One step per minibatch of these answers, `person x 6 + pattern`, in this order."""
        if self.num_people <= BATCH:
            for counts in self._counts(questions):
                self.descend(None, counts)
            return
        kinds = torch.nn.functional.one_hot(questions % NUM_PATTERNS, NUM_PATTERNS).float()
        people = questions // NUM_PATTERNS
        for rows, counts in zip(torch.split(people, BATCH), torch.split(kinds, BATCH), strict=True):
            self.descend(rows, counts / len(rows))

    @torch.no_grad()
    def losses(self, counts: Tensor) -> Components:
        """The parts of the loss; `counts` (people, patterns) sum to 1."""
        table = self.weights["table"]
        _, _, log_odds = self.forward(table)
        taught = self.lessons(log_odds.exp(), counts)
        entropy = -(log_odds.exp() * log_odds).sum(dim=1) @ counts.sum(dim=1)
        variance = table.var(dim=0)
        return Components(
            reconstruction=-float((taught * log_odds).sum()),
            evenness=float(((variance / variance.mean() - 1.0) ** 2).sum()),
            entropy=float(entropy),
        )

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both hidden layers and the log-odds of the types."""
        weights = self.weights
        hidden_1 = torch.addmm(weights["bias_1"], rows, weights["weight_1"].t()).tanh_()
        hidden_2 = torch.addmm(weights["bias_2"], hidden_1, weights["weight_2"].t()).tanh_()
        logits = torch.addmm(weights["bias_3"], hidden_2, weights["weight_3"].t())
        return hidden_1, hidden_2, torch.log_softmax(logits, dim=1)

    def lessons(self, odds: Tensor, counts: Tensor) -> Tensor:
        """(rows, types) how much of each type the answers teach; no gradient flows through it."""
        # The seeds halve the weight of answers that every type would give: only offer 12 is such.
        agreement = (odds @ self.possible.t()).clamp_min_(1e-12)
        return odds * ((counts / agreement) @ self.possible)

    def _counts(self, questions: Tensor) -> tuple[Tensor, ...]:
        """The minibatches as (people, patterns) shares, each summing to 1."""
        cells = self.num_people * NUM_PATTERNS
        batch = torch.arange(len(questions), device=questions.device) // BATCH
        number = -(-len(questions) // BATCH)
        counts = torch.bincount(batch * cells + questions, minlength=number * cells)
        shares = counts.reshape(number, cells) / counts.reshape(number, cells).sum(1, keepdim=True)
        return shares.reshape(number, -1, NUM_PATTERNS).unbind()

    def descend(self, rows: Tensor | None, counts: Tensor) -> None:
        """One step of Adam; `rows` are people, None for everybody in order."""
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
        """The gradient of the loss by every weight, layer by layer from the top."""
        weights, gradients = self.weights, self.gradients
        table = weights["table"]
        seen = table if rows is None else table[rows]
        hidden_1, hidden_2, log_odds = self.forward(seen)
        odds = log_odds.exp()
        asked = counts.sum(dim=1, keepdim=True)
        surprise = odds * log_odds
        spread = surprise - odds * surprise.sum(dim=1, keepdim=True)
        back = asked * (odds + ENTROPY_BONUS * spread) - self.lessons(odds, counts)

        torch.mm(back.t(), hidden_2, out=gradients["weight_3"])
        torch.sum(back, 0, out=gradients["bias_3"])
        back = back @ weights["weight_3"]
        back.addcmul_(back * hidden_2, hidden_2, value=-1.0)
        torch.mm(back.t(), hidden_1, out=gradients["weight_2"])
        torch.sum(back, 0, out=gradients["bias_2"])
        back = back @ weights["weight_2"]
        back.addcmul_(back * hidden_1, hidden_1, value=-1.0)
        torch.mm(back.t(), seen, out=gradients["weight_1"])
        torch.sum(back, 0, out=gradients["bias_1"])

        variance, centre = torch.var_mean(table, dim=0)
        mean = variance.mean()
        excess = variance / mean - 1.0
        slope = 2.0 * EVENNESS / mean * (excess - (excess * variance).sum() / (WIDTH * mean))
        torch.mul(table - centre, slope * (2.0 / (self.num_people - 1)), out=gradients["table"])
        if rows is None:
            gradients["table"].addmm_(back, weights["weight_1"])
        else:
            gradients["table"].index_add_(0, rows, back @ weights["weight_1"])


def first_weights(num_people: int, generator: torch.Generator) -> dict[str, Array]:
    """Random weights as torch's own layers begin: normal embeddings, uniform linear layers."""
    weights = {"table": torch.randn(num_people, WIDTH, generator=generator).numpy()}
    for name, shape in SHAPES.items():
        inputs = WIDTH if name.endswith("1") else HIDDEN
        uniform = torch.rand(shape, generator=generator).numpy()
        weights[name] = ((2.0 * uniform - 1.0) * np.float32(inputs**-0.5)).astype(np.float32)
    return weights


def patterns(offer: Array, accepted: BoolArray) -> IntArray:
    """(answers,) which of the six kinds of answer each is."""
    asked = OFFER_MINUTES[offer.astype(np.int64)] > 0.0
    sides = asked[:, 0] + 2 * asked[:, 1] - 1
    return np.asarray(np.where(accepted, 3, 0) + sides, np.int64)


def possible_types() -> Array:
    """(patterns, types) 1 where a strict type would have answered so."""
    rates = strict_rates(1)[:, 0]
    earlier_only, later_only, both = 0, 15, 3
    accepts = (rates[:, (earlier_only, later_only, both)] > 0.5).T
    return np.concatenate([~accepts, accepts]).astype(np.float32)


def _views(flat: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    parts = torch.split(flat, sizes)
    return {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}


class BackgroundRefit:
    """Teaches a model these answers in a thread; both must be the thread's own until `result`."""

    def __init__(self, model: TypeModel, answers: Responses) -> None:
        self.model, self.answers = model, answers
        self.report: dict[str, float] = {}
        self.error: BaseException | None = None
        self.cancelled = threading.Event()
        self.thread = threading.Thread(target=self._run, name="acceptance-refit", daemon=True)
        self.thread.start()

    def result(self) -> tuple[TypeModel, dict[str, float]]:
        """Wait for the model and what it reports; an error of the thread comes home here."""
        self.thread.join()
        if self.error is not None:
            raise TrainingError(
                f"the background refit on {len(self.answers)} responses failed with "
                f"{type(self.error).__name__}: {self.error}"
            ) from self.error
        return self.model, self.report

    def cancel(self) -> None:
        """End it at the next chance and forget it."""
        self.cancelled.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            self.report = self.model.refit(self.answers, self.cancelled.is_set)
        except BaseException as error:
            self.error = error
