"""Trust in run folders: what only a run folder names is neither imported nor joined unasked.

A run folder may come from a stranger. Its settings can name a module (`my_module:MyEnv-v0`, or a red agent
of cage2), arguments of a third-party env and the address of a Ray cluster, and all of these execute code.
Runs that this user made, in the folder where they are now, are recognised by an authentication code in
the run folder; its key never leaves the user's data directory.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Final

from hundredfold.config.run import RunSettings
from hundredfold.core.errors import SettingsError
from hundredfold.core.files import NO_FOLLOW, read_bounded, write_atomically
from hundredfold.envs.registry import ENVS, FROM_CALLABLE, canonical_name
from hundredfold.training.run_folder import RunFolder

KEY_BYTES: Final = 32


def executed_by(settings: RunSettings) -> dict[str, str]:
    """What these settings import, call or join besides the package itself, by name of the setting."""
    found: dict[str, str] = {}
    env = canonical_name(settings.env)
    if env not in ENVS and not env.startswith(FROM_CALLABLE):
        module, separator, _ = env.partition(":")
        if separator:
            found["env"] = f"imports the Python module {module!r}"
        if settings.env_settings.env_kwargs:
            found["env_kwargs"] = f"passes {' '.join(settings.env_settings.env_kwargs)!r} to {env}"
    if red := own_red(settings):
        found["red"] = f"imports the Python module {red.partition(':')[0]!r}"
    if settings.machine.backend == "ray" and settings.ray.address:
        found["address"] = f"joins the Ray cluster {settings.ray.address!r}"
    return found


def own_red(settings: RunSettings) -> str:
    """The class of a red agent of cage2 that the settings name as module:Class, or ""."""
    red = getattr(settings.env_settings, "red", "")
    return red if ":" in red else ""


def require_trust(folder: RunFolder, settings: RunSettings, named: Container[str], trusted: bool) -> None:
    """Raise a SettingsError if a run folder that was not made here would execute something.

    Args:
        folder: Run folder.
        settings: Settings that will be used: those of the run folder, changed by the user's own.
        named: Settings that the user gave himself; they need no trust.
        trusted: The user trusts this folder (`--trust-run`).
    """
    executed = [text for name, text in executed_by(settings).items() if name not in named]
    if not executed or trusted or _is_from_here(folder):
        return
    raise SettingsError(
        f"with the settings of {folder.path} this command {' and '.join(executed)}, but this run was not made by you "
        "in this folder. If you trust its author, add --trust-run (trust_run=True in Python)."
    )


def mark_origin(folder: RunFolder, settings: RunSettings) -> None:
    """Record that the user of this process made the run, in this folder; without a home nothing is recorded."""
    code = _authentication_code(folder, settings)
    if code is not None:
        write_atomically(_origin_file(folder), code + "\n")


def _is_from_here(folder: RunFolder) -> bool:
    code = _authentication_code(folder, folder.settings())
    if code is None:
        return False
    try:
        recorded = read_bounded(_origin_file(folder), 1000)
    except OSError:
        return False
    return hmac.compare_digest(recorded.strip(), code.encode())


def _origin_file(folder: RunFolder) -> Path:
    return folder.path / ".origin"


def _authentication_code(folder: RunFolder, settings: RunSettings) -> str | None:
    """HMAC of the folder's place and of all that its settings could execute; None without a key."""
    key = _user_key()
    if key is None:
        return None
    arguments = getattr(settings.env_settings, "env_kwargs", ())
    named = [str(folder.path.resolve()), settings.env, list(arguments), settings.ray.address]
    message = json.dumps([*named, red] if (red := own_red(settings)) else named)
    return hmac.digest(key, message.encode(), "sha256").hex()


def _user_key() -> bytes | None:
    """The user's secret key, made on first use; None where the user has no data directory."""
    try:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
        path = data / "hundredfold" / "key"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            # Written completely under another name first: other processes may read it at any time.
            temporary = path.with_name(f"key.{os.getpid()}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o600)
            try:
                os.write(descriptor, secrets.token_bytes(KEY_BYTES))
                with suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                os.close(descriptor)
                temporary.unlink()
        key = read_bounded(path, KEY_BYTES)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    return key if len(key) == KEY_BYTES else None
