"""Files that may be damaged or come from strangers: bounded, sealed with checksums, links not followed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# Not defined on Windows, where creating links needs a privilege.
NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
NO_BLOCK: Final = getattr(os, "O_NONBLOCK", 0)
# Settings, manifests and metrics are far smaller; what is larger is not one of them.
MAX_TEXT_BYTES: Final = 256 * 2**20

SEAL: Final = b',\n  "sha256": "'


@dataclass(frozen=True, slots=True)
class Seal:
    """Size and SHA-256 of the first bytes of a file that is only appended to."""

    size: int
    sha256: str

    def fits(self, data: bytes) -> bool:
        """Whether a file with this content still begins with the sealed bytes."""
        return len(data) >= self.size and hashlib.sha256(data[: self.size]).hexdigest() == self.sha256


def open_no_follow(path: Path, flags: int) -> int:
    """Open a file without following a link at its end; returns a file descriptor.

    Args:
        path: The file.
        flags: Flags of `os.open`.

    Raises:
        OSError: Also for links, pipes and devices; `strerror` says what it is.
    """
    try:
        descriptor = os.open(path, flags | NO_FOLLOW | NO_BLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_bounded(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Content of a file, without following a link; an OSError if it is larger than `max_bytes`."""
    with open(open_no_follow(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes; expected at most {max_bytes:,}", str(path))
        return file.read(max_bytes)


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically: temporary name, fsync, rename. A link of that name is replaced."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        replace_file(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(temporary: Path, path: Path) -> None:
    """Rename a file that has been written under a temporary name; a file or link of the new name is replaced.

    Args:
        temporary: The written file.
        path: Its name.

    Raises:
        OSError: The name is that of a device, a pipe or a folder, which root could replace by mistake.
    """
    if path.exists() and not path.is_file() and not path.is_symlink():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    temporary.replace(path)


def parse_json(data: bytes | str) -> Any:
    """`json.loads` whose errors are all ValueErrors, also for lists nested thousands deep."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def sealed_json(table: dict[str, Any], indent: int | None = 2) -> str:
    """A JSON object whose last entry is the SHA-256 of all bytes before it.

    Args:
        table: Not empty; its values must be finite.
        indent: As for `json.dumps`.
    """
    body = json.dumps(table, indent=indent, allow_nan=False).removesuffix("}").rstrip().encode()
    return (body + SEAL + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n').decode()


def read_sealed_json(path: Path, max_bytes: int = MAX_TEXT_BYTES, *, required: bool = True) -> dict[str, Any]:
    """The object that `sealed_json` wrote.

    Args:
        path: The file.
        max_bytes: Its largest size.
        required: False to accept objects without a checksum, as the first versions wrote them.

    Raises:
        ValueError: A single bit of the file has changed, or it was written otherwise.
        OSError: It cannot be read.
    """
    data = read_bounded(path, max_bytes)
    body, _, seal = data.rpartition(SEAL)
    if seal == hashlib.sha256(body).hexdigest().encode() + b'"\n}\n':
        data = body + b"}"
    elif required or b'"sha256"' in data:
        raise ValueError("its checksum does not match")
    table = parse_json(data)
    if not isinstance(table, dict):
        raise ValueError("it is not a JSON object")
    return table
