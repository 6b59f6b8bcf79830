"""Run folders: paths, settings and versions of one run, written by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from hundredfold.config.presets import default_settings
from hundredfold.config.run import RunSettings
from hundredfold.config.toml import apply_table, to_toml
from hundredfold.core.errors import CheckpointError, SettingsError, suggest
from hundredfold.core.files import open_no_follow, read_bounded, read_sealed_json, sealed_json, write_atomically
from hundredfold.core.toml_files import MAX_BYTES, parse_toml

# Start of the last line of settings.toml.
SEAL: Final = b"# sha256 of the lines above: "
# Longest name of a file on common file systems.
MAX_NAME_BYTES: Final = 255
CHECKSUMS: Final = "checksums.json"  # of the data files, in their folder
MAX_DATA_BYTES: Final = 2**30
PACKAGES = ("hundredfold", "numpy", "numba", "torch", "gymnasium", "safetensors")


class RunFolder:
    """Paths and small files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: int | None = None  # file descriptor

    @property
    def settings_file(self) -> Path:
        return self.path / "settings.toml"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best_file(self) -> Path:
        return self.checkpoints / "best.json"

    @property
    def versions_file(self) -> Path:
        return self.path / "versions.json"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    @property
    def stop_file(self) -> Path:
        return self.path / "stopped.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    @property
    def data(self) -> Path:
        """Copies of the user's data files that the run was trained on, with their checksums."""
        return self.path / "data"

    @classmethod
    def create(cls, settings: RunSettings, save_dir: Path, name: str | None, *, keep_data: bool = True) -> RunFolder:
        """Create a folder with the run's settings and copies of the data files that they name.

        Args:
            settings: Run settings.
            save_dir: Where to create it.
            name: Its name; by default env, time and seed. An existing folder is an error.
            keep_data: False to copy no data files: the settings then name those of the user.
        """
        check_name(name)
        path = _free_name(save_dir, settings) if name is None else save_dir / name
        if path.exists():
            raise SettingsError(
                f"the run folder {path} exists already; choose another --name, "
                f"or continue that run with --resume {path}."
            )
        try:
            path.mkdir(parents=True)
            folder = cls(path)
            folder.checkpoints.mkdir()
            folder.claim()
            folder.write_settings(folder._copy_data(settings) if keep_data else settings)
            write_atomically(folder.versions_file, sealed_json(versions()))
        except OSError as error:
            raise SettingsError(
                f"cannot write a run folder at {path}: {error.strerror}; choose another --save-dir."
            ) from error
        return folder

    @classmethod
    def open_policy(cls, name: str, policies: Iterable[str]) -> RunFolder:
        """Open the run that was named where a policy without a run could have been.

        Args:
            name: Path of the run folder.
            policies: Names of the policies without a run, for the hint in the error message.
        """
        if not Path(name).exists():
            raise SettingsError(
                f"{name!r} is neither a policy nor a run folder; {suggest(name, policies)} "
                "The path of a run folder is accepted as well."
            )
        return cls.open(Path(name))

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run."""
        folder = cls(path)
        if not folder.settings_file.is_file():
            what = "there is no such folder" if not path.exists() else "it has no settings.toml"
            raise CheckpointError(f"{path} is not a run folder: {what}. `ls runs` lists the runs of this directory.")
        return folder

    def check_links(self) -> None:
        """Raise a CheckpointError if the checkpoints are elsewhere: files there are not this run's to delete."""
        if self.checkpoints.is_symlink():
            raise CheckpointError(
                f"{self.checkpoints} is a symbolic link, which is not followed; move the checkpoints into the run "
                "folder. The run folder itself may be a link."
            )

    def settings(self) -> RunSettings:
        """Settings of the run."""
        table = self.settings_table()
        env = table.get("env")
        if not isinstance(env, str):
            raise CheckpointError(f"{self.settings_file} has no `env`; it is not the settings file of a run.")
        # Settings that the file lacks get class defaults, not those of a preset.
        return self._with_kept_data(apply_table(default_settings(env, table), table, str(self.settings_file)))

    def settings_table(self) -> dict[str, Any]:
        """Settings of the run as nested tables, after their checksum was checked."""
        try:
            data = read_bounded(self.settings_file, MAX_BYTES)
        except OSError as error:
            raise CheckpointError(f"cannot read {self.settings_file}: {error.strerror}.") from error
        body, seal, checksum = data.rpartition(SEAL)
        if seal and checksum.strip().decode("ascii", "replace") != hashlib.sha256(body).hexdigest():
            raise CheckpointError(
                f"{self.settings_file} was changed or damaged after the run wrote it: its checksum does not match. "
                "Restore it; to use it as it is, delete its last line."
            )
        return parse_toml(data, self.settings_file)

    def write_settings(self, settings: RunSettings) -> None:
        """Write settings.toml; its last line is a comment with the checksum of the others."""
        text = to_toml(settings)
        write_atomically(self.settings_file, f"{text}{SEAL.decode()}{hashlib.sha256(text.encode()).hexdigest()}\n")

    def _copy_data(self, settings: RunSettings) -> RunSettings:
        """Copy the data files into the folder; returns the settings with the paths of the copies."""
        files = getattr(settings.env_settings, "data_files", {})
        if not files:
            return settings
        self.data.mkdir()
        for name, path in files.items():
            shutil.copyfile(path, self._kept(name))
        checksums = {name: _sha256(self._kept(name)) for name in files}
        write_atomically(self.data / CHECKSUMS, sealed_json(checksums))
        return self._with_kept_paths(settings, checksums)

    def _with_kept_data(self, settings: RunSettings) -> RunSettings:
        """The settings with the data files that the run kept, wherever the folder is now.

        Raises:
            CheckpointError: A file was changed or is missing.
        """
        if not getattr(settings.env_settings, "data_files", {}) or not self.data.exists():
            return settings
        try:
            checksums = read_sealed_json(self.data / CHECKSUMS)
            for name, checksum in checksums.items():
                if _sha256(self._kept(name)) != checksum:
                    raise ValueError(f"{self._kept(name)} was changed after the run started")
        except (OSError, ValueError) as error:
            what = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            raise CheckpointError(
                f"the data that {self.path} was trained on is not there any more ({what}), so its results would mean "
                "something else. Restore the file, or train a new run on the new data."
            ) from error
        return self._with_kept_paths(settings, checksums)

    def _kept(self, name: str) -> Path:
        return self.data / f"{name}{'.toml' if name == 'network_file' else '.csv'}"

    def _with_kept_paths(self, settings: RunSettings, names: Iterable[str]) -> RunSettings:
        kept = {name: str(self._kept(name).resolve()) for name in names}
        return replace(settings, env_settings=replace(settings.env_settings, **kept))

    def claim(self) -> None:
        """Lock the folder for this process; the lock is released when the process ends."""
        self.check_links()
        try:
            self.lock = open_no_follow(self.path / ".lock", os.O_WRONLY | os.O_CREAT)
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise CheckpointError(
                f"{self.path} is being written by another process; wait for it or stop it."
            ) from error
        except OSError as error:
            raise CheckpointError(f"cannot lock {self.path}: {error.filename}: {error.strerror}.") from error

    def is_claimed(self) -> bool:
        """Whether another process writes to the folder."""
        try:
            self.claim()
        except CheckpointError as error:
            if isinstance(error.__cause__, BlockingIOError):
                return True
            raise
        self.release()
        return False

    def release(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_bounded(path, MAX_DATA_BYTES)).hexdigest()


def versions() -> dict[str, Any]:
    """Versions of Python, platform and packages."""
    found = {name: metadata.version(name) for name in PACKAGES}
    return {"python": sys.version.split()[0], "platform": platform.platform(), **found}


def check_name(name: str | None) -> None:
    """Raise a SettingsError unless the name of a run is that of one folder below --save-dir."""
    if name is None:
        return
    if not name.strip() or name in (".", "..") or not name.isprintable() or set(name) & set("/\\"):
        raise SettingsError(
            f"--name is {name!r}; expected the name of one folder, without path separators. "
            "Use --save-dir for the folder that it is created in."
        )
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise SettingsError(f"--name has {len(os.fsencode(name))} bytes; expected at most {MAX_NAME_BYTES}.")


def _free_name(save_dir: Path, settings: RunSettings) -> Path:
    """<env>-<time>-<seed>, with a number appended if it exists."""
    env = re.sub(r"[^A-Za-z0-9_.-]+", "-", settings.env)
    stem = f"{env}-{datetime.now(UTC).astimezone():%Y%m%d-%H%M%S}-{settings.seed}"
    path, number = save_dir / stem, 2
    while path.exists():
        path, number = save_dir / f"{stem}-{number}", number + 1
    return path
