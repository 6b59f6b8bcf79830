"""Envs by name: the built-in ones in `ENVS`, any Gymnasium id, or a function that makes an env."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

from hundredfold.core.errors import SettingsError, is_installed, suggest
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
    # Class that draws the env, as module:name; see `rendering`.
    rendering: str
    # Function from settings to the names of the actions, as module:name, if they have names.
    action_names: str | None = None
    # Function from settings to tables of what the env's numbers mean, as module:name, if there is one.
    legend: str | None = None
    # Function of the evaluate command; other than the default if the return alone says too little.
    evaluate: str = EVALUATE_RETURNS
    # Module that makes the env's belief model, if it has one.
    belief_model: str | None = None
    # Module that records episodes of a trained policy for the HTML report, if there is one.
    report_data: str | None = None
    # Whether it has arrays that only the value function sees in training.
    has_privileged: bool = False
    # Function from settings to sentences about the data of a user that are printed before training.
    data_notes: str | None = None
    # Groups of arrays in its snapshots whose memory an estimate shows by itself: prefix and label.
    memory_groups: Mapping[str, str] = field(default_factory=dict)


ENVS: dict[str, EnvEntry] = {
    "corridor": EnvEntry(
        module="hundredfold.envs.corridor",
        env="Corridor",
        settings="CorridorSettings",
        summary="walk to the exit; solvable by hand, with masks",
        gymnasium_id="hundredfold/Corridor-v0",
        rendering="hundredfold.envs.corridor:CorridorRendering",
    ),
    "cartpole": EnvEntry(
        module="hundredfold.envs.cartpole",
        env="CartPole",
        settings="CartPoleSettings",
        summary="Gymnasium's CartPole-v1 as one compiled batch",
        gymnasium_id="hundredfold/CartPole-v0",
        rendering="hundredfold.envs.cartpole:CartPoleRendering",
    ),
    "dvrp": EnvEntry(
        module="hundredfold.envs.dvrp.env",
        env="Dvrp",
        settings="DvrpSettings",
        summary="dial-a-ride bookings: whom to ask to travel a little earlier or later",
        gymnasium_id="hundredfold/DVRP-v0",
        rendering="hundredfold.envs.dvrp.rendering:DvrpRendering",
        action_names="hundredfold.envs.dvrp.settings:offer_names",
        legend="hundredfold.envs.dvrp.legend:tables",
        evaluate="hundredfold.cli.evaluate_dvrp:run",
        belief_model="hundredfold.envs.dvrp.acceptance.belief_model",
        report_data="hundredfold.envs.dvrp.report_data",
        has_privileged=True,
        data_notes="hundredfold.envs.dvrp.demand:data_notes",
        memory_groups={"routes": "oracle routes"},
    ),
    "cage2": EnvEntry(
        module="hundredfold.envs.cage2.env",
        env="Cage2",
        settings="Cage2Settings",
        summary="CAGE Challenge 2: defend a network of 13 hosts; exact",
        gymnasium_id="hundredfold/CAGE2-v0",
        rendering="hundredfold.envs.cage2.rendering:Cage2Rendering",
        action_names="hundredfold.envs.cage2.legend:action_names",
        legend="hundredfold.envs.cage2.legend:tables",
        report_data="hundredfold.envs.cage2.report_data",
        evaluate="hundredfold.cli.cage2:run_evaluate",
        has_privileged=True,
    ),
}


# A run on an env made by a Python function is recorded under this prefix and the function's name.
FROM_CALLABLE = "callable "
# Ids of Atari games begin with this.
ATARI = "ALE/"
# Endings of the ids that Atari games have elsewhere.
OTHER_ATARI_IDS = re.compile(r"(-?ram)?(NoFrameskip|Deterministic)?(-v\d+)?$", re.IGNORECASE)


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
    from hundredfold.envs.gymnasium_factory import GymnasiumSettings

    return GymnasiumSettings


def action_names(name: str, settings: Any) -> tuple[str, ...]:
    """Names of the actions of an env, by number; empty if they have none.

    Args:
        name: short name or Gymnasium id.
        settings: settings of the env.
    """
    entry = ENVS.get(canonical_name(name))
    if entry is None or entry.action_names is None:
        return ()
    names: tuple[str, ...] = resolve_name(entry.action_names)(settings)
    return names


def env_factory(name: str, settings: Any, *, privileged: bool = False) -> EnvFactory:
    """The factory of an env.

    Args:
        name: short name or Gymnasium id.
        settings: settings of the env.
        privileged: whether its observations include the arrays that only the value function sees.
    """
    name = canonical_name(name)
    if name in ENVS:
        entry = ENVS[name]
        if privileged and not entry.has_privileged:
            raise SettingsError(f"{name} hides nothing from the policy; --critic privileged has no effect there.")
        more = {"privileged": True} if privileged else {}
        return partial(getattr(import_module(entry.module), entry.env), settings=settings, **more)
    if name.startswith(FROM_CALLABLE):
        raise SettingsError(
            f"this run was trained on a Python function ({name.removeprefix(FROM_CALLABLE)}); "
            "pass that function again from Python: hundredfold.train(make_env, resume=RUN) or "
            "hundredfold.evaluate(RUN, make_env=make_env)."
        )
    _check_known(name)
    from hundredfold.envs.gymnasium_factory import GymnasiumFactory

    if settings.atari and not name.startswith(ATARI):
        raise SettingsError(f"--atari is for Atari games, whose ids begin with {ATARI}; {name} is none.")
    hidden = settings.privileged(privileged)
    return GymnasiumFactory(name, settings.keywords, settings.seed_episodes, hidden, settings.atari)


def callable_factory(make_env: Callable[[], Any], settings: Any = None, *, privileged: bool = False) -> EnvFactory:
    """The factory of an env made by a function.

    Args:
        make_env: function without arguments that returns a Gymnasium env.
        settings: `GymnasiumSettings`; by default those without flags.
        privileged: as for `env_factory`.
    """
    from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
    from hundredfold.envs.gymnasium_factory import GymnasiumSettings

    settings = settings or GymnasiumSettings()
    return partial(
        GymnasiumBatchEnv,
        make_env=make_env,
        seed_episodes=settings.seed_episodes,
        privileged=settings.privileged(privileged),
    )


def _check_known(name: str) -> None:
    """Raise a `SettingsError` unless Gymnasium knows the id."""
    import gymnasium

    if name.startswith(ATARI):
        from hundredfold.envs.atari import register_atari

        register_atari()
    # For `module:Env-v0` Gymnasium imports the module first; whether that works shows only there.
    if ":" in name or name in gymnasium.registry:
        return
    raise SettingsError(
        f"there is no env called {name!r} and Gymnasium has no such id; "
        f"{_atari_id(name) or suggest(name, [*ENVS, *gymnasium.registry], otherwise=_known_envs())}"
    )


def _atari_id(name: str) -> str:
    """For a game that goes by another id, such as PongNoFrameskip-v4, the one it has here; empty for others."""
    import gymnasium

    if is_installed("ale_py"):
        from hundredfold.envs.atari import register_atari

        register_atari()
    game = OTHER_ATARI_IDS.sub("", name.removeprefix(ATARI))
    known = {key.lower(): key for key in gymnasium.registry}.get(f"{ATARI}{game}-v5".lower())
    return f"this game is {known} here: hundredfold train {known} --atari" if known else ""


def _known_envs() -> str:
    return f"envs are {', '.join(ENVS)}, and any Gymnasium id such as CartPole-v1."
