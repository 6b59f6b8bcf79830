"""Who is judged by `hundredfold evaluate dvrp`: rules, some of which learn first, and runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hundredfold.core.contracts import Knowledge
from hundredfold.core.errors import SettingsError
from hundredfold.flexibility.answers import AnswerRows, Answers
from hundredfold.flexibility.companion import FlexibilityCompanion
from hundredfold.flexibility.counting import Counting
from hundredfold.flexibility.model import FlexibilityModel
from hundredfold.flexibility.prior import prior_for
from hundredfold.training.companions import saved_companion
from hundredfold.training.run_folder import RunFolder
from hundredfold.worlds.dvrp.evaluation import NO_ADVICE, Advice
from hundredfold.worlds.dvrp.learning_days import LEARNS_BY, LearningSettings, learn_by_asking
from hundredfold.worlds.dvrp.policies import BELIEVING, POLICIES, OfferPolicy
from hundredfold.worlds.dvrp.population import population_for
from hundredfold.worlds.dvrp.scenario import ScenarioSettings
from hundredfold.worlds.dvrp.settings import DvrpSettings


@dataclass(frozen=True, slots=True)
class Learned:
    """A model of flexibility and the answers it learned from."""

    model: FlexibilityModel
    answers: AnswerRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One policy with everything it needs to play."""

    name: str
    policy: str | OfferPolicy
    settings: DvrpSettings
    advice: Advice = NO_ADVICE
    knowledge: Knowledge | None = None
    learned: Learned | None = None

    def at_price(self, patience_per_minute: float) -> Contender:
        """The same rule under another price of a minute moved."""
        return replace(self, advice=replace(self.advice, patience_per_minute=patience_per_minute))


class Contenders:
    """Makes contenders; rules that learn by the same questions share what they learned."""

    def __init__(
        self,
        *,
        seed: int,
        learning: LearningSettings,
        scenario: ScenarioSettings,
        checkpoint: str,
        expect: Callable[[int], Callable[[int], None]],
    ) -> None:
        self.seed = seed
        self.learning = learning
        self.scenario = scenario
        self.checkpoint = checkpoint
        self.expect = expect  # announces days, and gives who hears how many are done
        self.taught: dict[tuple[str, DvrpSettings], Learned] = {}

    def rule(self, name: str, settings: DvrpSettings) -> Contender:
        """A rule by name, in the world of these settings, after its learning days."""
        if name not in BELIEVING:
            return Contender(name=name, policy=name, settings=settings)
        taught_as = (LEARNS_BY.get(name, name), settings)
        if taught_as not in self.taught:
            self.taught[taught_as] = self._taught(name, settings)
        learned = self.taught[taught_as]
        advice = Advice(believer=learned.model, scenario=self.scenario)
        return Contender(name=name, policy=name, settings=settings, advice=advice, learned=learned)

    def named(self, name: str, settings: DvrpSettings) -> Contender:
        """A rule, or a run when no rule has this name."""
        return self.rule(name, settings) if name in POLICIES else self.run(name)

    def run(self, folder: str) -> Contender:
        """The policy of a run folder."""
        return run_contender(folder, self.checkpoint)

    def _taught(self, name: str, settings: DvrpSettings) -> Learned:
        population = population_for(settings)
        model, answers = Counting(population.num_people, prior_for(settings)), Answers()
        tick = self.expect(self.learning.learning_days)
        learn_by_asking(name, settings, model, answers, self.learning, seed=self.seed, tick=tick)
        return Learned(model, answers.rows())


def run_contender(folder: str, checkpoint: str) -> Contender:
    """The policy of a run, with the days it was trained for and what its companion believes."""
    from hundredfold.api import load

    opened = RunFolder.open(Path(folder))
    settings = opened.settings()
    if not isinstance(settings.world_settings, DvrpSettings):
        raise SettingsError(f"{folder} was trained on {settings.world}, not on dvrp.")
    policy, world = load(folder, checkpoint).actor, settings.world_settings
    companion = saved_companion(opened, checkpoint)
    if not isinstance(companion, FlexibilityCompanion):
        return Contender(name=folder, policy=policy, settings=world)
    return Contender(
        name=folder,
        policy=policy,
        settings=world,
        knowledge=companion.knowledge(exploring=False),
        learned=Learned(companion.model, companion.answers.rows()),
    )
