"""What happens when envs act. `ENVS` names the envs; a Gymnasium id names one too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.protocols import EnvFactory

EVALUATE_RETURNS = "hundredfold.cli.evaluate_returns"


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """Where an env lives. It is imported when someone chooses it by name."""

    module: str
    env: str
    settings: str
    summary: str
    gymnasium_id: str
    # The command that judges policies on this env, where return alone does not say enough.
    evaluate: str = EVALUATE_RETURNS
    # Where the model is made that learns beside a policy on this env, where there is one.
    belief_model: str | None = None
    # Where a trained policy plays some days for the page of its run, where that says more.
    report_data: str | None = None


ENVS: dict[str, EnvEntry] = {
    "corridor": EnvEntry(
        module="hundredfold.envs.corridor",
        env="Corridor",
        settings="CorridorSettings",
        summary="walk to the exit; solvable by hand, with masks",
        gymnasium_id="hundredfold/Corridor-v0",
    ),
    "cartpole": EnvEntry(
        module="hundredfold.envs.cartpole",
        env="CartPole",
        settings="CartPoleSettings",
        summary="Gymnasium's CartPole-v1 as one compiled batch",
        gymnasium_id="hundredfold/CartPole-v0",
    ),
    "dvrp": EnvEntry(
        module="hundredfold.envs.dvrp.env",
        env="Dvrp",
        settings="DvrpSettings",
        summary="dial-a-ride bookings: whom to ask to travel a little earlier or later",
        gymnasium_id="hundredfold/DVRP-v0",
        evaluate="hundredfold.cli.evaluate_dvrp",
        belief_model="hundredfold.envs.dvrp.acceptance.belief_model",
        report_data="hundredfold.envs.dvrp.report_data",
    ),
    "cage2": EnvEntry(
        module="hundredfold.envs.cage2.env",
        env="Cage2",
        settings="Cage2Settings",
        summary="CAGE Challenge 2: defend a network of 13 hosts; exact",
        gymnasium_id="hundredfold/CAGE2-v0",
        evaluate="hundredfold.cli.evaluate_cage2",
    ),
}


# A run on somebody's Python function is recorded under this name and the function's own.
FROM_CALLABLE = "callable "


def canonical_name(name: str) -> str:
    """Our name of an env that is asked for by the id we gave it in Gymnasium."""
    names = {entry.gymnasium_id: ours for ours, entry in ENVS.items()}
    return names.get(name, name)


def settings_class(name: str, *, installed: bool = True) -> type[Any]:
    """The settings class of an env, by name or Gymnasium id.

    With `installed=False`, of one that a run was trained on and that may not be here.
    """
    name = canonical_name(name)
    if name in ENVS:
        entry = ENVS[name]
        found: type[Any] = getattr(import_module(entry.module), entry.settings)
        return found
    if installed and not name.startswith(FROM_CALLABLE):
        _refuse_unknown(name)
    from hundredfold.envs.gymnasium_env import GymnasiumSettings

    return GymnasiumSettings


def env_factory(name: str, settings: Any) -> EnvFactory:
    """A function from env ids to the part of the env that holds them."""
    name = canonical_name(name)
    if name in ENVS:
        entry = ENVS[name]
        return partial(getattr(import_module(entry.module), entry.env), settings=settings)
    if name.startswith(FROM_CALLABLE):
        raise SettingsError(
            f"this run was trained on a Python function ({name.removeprefix(FROM_CALLABLE)}); "
            "pass that function again from Python: hundredfold.train(make_env, resume=RUN) or "
            "hundredfold.evaluate(RUN, make_env=make_env)."
        )
    _refuse_unknown(name)
    from hundredfold.envs.gymnasium_env import GymnasiumFactory

    return GymnasiumFactory(name, settings.keywords, settings.seed_episodes)


def callable_factory(make_env: Callable[[], Any], *, seed_episodes: bool = True) -> EnvFactory:
    """The same for a function that makes a Gymnasium env."""
    from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

    return partial(GymnasiumBatchEnv, make_env=make_env, seed_episodes=seed_episodes)


def _refuse_unknown(name: str) -> None:
    """Our own names need no Gymnasium; for any other word it must know the id."""
    import gymnasium

    # `module:Env-v0` asks Gymnasium to import the module first; only it can tell whether it works.
    if ":" in name or name in gymnasium.registry:
        return
    raise SettingsError(
        f"there is no env called {name!r} and Gymnasium has no such id; "
        f"{suggest(name, [*ENVS, *gymnasium.registry], otherwise=_suggestion())}"
    )


def _suggestion() -> str:
    return f"envs are {', '.join(ENVS)}, and any Gymnasium id such as CartPole-v1."
