"""Envs by name: the built-in ones in `ENVS`, any Gymnasium id, or a function that makes an env."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.protocols import EnvFactory

EVALUATE_RETURNS = "hundredfold.cli.evaluate:run_by_return"


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """A built-in env, given by module and class names: it is imported when it is used."""

    module: str
    env: str
    settings: str
    summary: str
    gymnasium_id: str
    # Function of the evaluate command; other than the default if the return alone says too little.
    evaluate: str = EVALUATE_RETURNS
    # Module that makes the env's belief model, if it has one.
    belief_model: str | None = None
    # Module that records episodes of a trained policy for the HTML report, if there is one.
    report_data: str | None = None
    # Groups of arrays in its snapshots whose memory an estimate shows by itself: prefix and label.
    memory_groups: Mapping[str, str] = field(default_factory=dict)


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
        evaluate="hundredfold.cli.evaluate_dvrp:run",
        belief_model="hundredfold.envs.dvrp.acceptance.belief_model",
        report_data="hundredfold.envs.dvrp.report_data",
        memory_groups={"routes": "oracle routes"},
    ),
    "cage2": EnvEntry(
        module="hundredfold.envs.cage2.env",
        env="Cage2",
        settings="Cage2Settings",
        summary="CAGE Challenge 2: defend a network of 13 hosts; exact",
        gymnasium_id="hundredfold/CAGE2-v0",
        evaluate="hundredfold.cli.cage2:run_evaluate",
    ),
}


# A run on an env made by a Python function is recorded under this prefix and the function's name.
FROM_CALLABLE = "callable "


def canonical_name(name: str) -> str:
    """The short name of a built-in env given by its Gymnasium id; other names are unchanged."""
    names = {entry.gymnasium_id: short for short, entry in ENVS.items()}
    return names.get(name, name)


def settings_class(name: str, *, installed: bool = True) -> type[Any]:
    """The settings class of an env.

    Args:
        name: short name or Gymnasium id.
        installed: False to skip the check that Gymnasium knows the id, for reading old runs.
    """
    name = canonical_name(name)
    if name in ENVS:
        entry = ENVS[name]
        found: type[Any] = getattr(import_module(entry.module), entry.settings)
        return found
    if installed and not name.startswith(FROM_CALLABLE):
        _check_known(name)
    from hundredfold.envs.gymnasium_env import GymnasiumSettings

    return GymnasiumSettings


def env_factory(name: str, settings: Any) -> EnvFactory:
    """The factory of an env, by short name or Gymnasium id."""
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
    _check_known(name)
    from hundredfold.envs.gymnasium_env import GymnasiumFactory

    return GymnasiumFactory(name, settings.keywords, settings.seed_episodes)


def callable_factory(make_env: Callable[[], Any], *, seed_episodes: bool = True) -> EnvFactory:
    """The factory of an env made by a function without arguments that returns a Gymnasium env."""
    from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

    return partial(GymnasiumBatchEnv, make_env=make_env, seed_episodes=seed_episodes)


def _check_known(name: str) -> None:
    """Raise a `SettingsError` unless Gymnasium knows the id."""
    import gymnasium

    # For `module:Env-v0` Gymnasium imports the module first; whether that works shows only there.
    if ":" in name or name in gymnasium.registry:
        return
    raise SettingsError(
        f"there is no env called {name!r} and Gymnasium has no such id; "
        f"{suggest(name, [*ENVS, *gymnasium.registry], otherwise=_known_envs())}"
    )


def _known_envs() -> str:
    return f"envs are {', '.join(ENVS)}, and any Gymnasium id such as CartPole-v1."
