"""Journal of the desk in SQLite or PostgreSQL: everything else is rebuilt from it.

A row is written, and committed to disk, before the caller gets an answer. Only one process may write
to a journal, which a lock ensures that the operating system releases when the process dies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path
from typing import IO, Any, Final

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    Date,
    DateTime,
    Engine,
    Integer,
    String,
    create_engine,
    event,
    insert,
    select,
    text,
)
from sqlalchemy import Index as TableIndex
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import StaticPool

from hundredfold.core.errors import HundredfoldError, SettingsError

__all__ = ["Base", "Event", "Journal", "JournalError", "JournalRow", "StoredEvent", "migrate", "read_journal"]

# Number of PostgreSQL's advisory lock, and seconds to wait until a killed process has released it.
LOCK_NUMBER: Final = 0x68667364
LOCK_SECONDS: Final = 30.0
BUSY_MILLISECONDS: Final = 30_000


class JournalError(HundredfoldError):
    """The journal cannot be written."""


class Base(DeclarativeBase):
    """Tables of the desk."""


class JournalRow(Base):
    """One event."""

    __tablename__ = "journal"

    # SQLite numbers rows by itself only if the type is INTEGER.
    seq: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    day: Mapped[date] = mapped_column(Date)
    kind: Mapped[str] = mapped_column(String(16))
    request_id: Mapped[str | None] = mapped_column(String(64))
    rider: Mapped[str | None] = mapped_column(String(64))
    data: Mapped[dict[str, Any]] = mapped_column(JSON)

    __table_args__ = (
        TableIndex("journal_day", "day", "seq"),
        TableIndex("journal_request", "request_id"),
        TableIndex("journal_rider", "rider", "seq"),
        TableIndex("journal_kind", "kind", "seq"),
    )


INSERT: Final = insert(JournalRow.__table__)  # type: ignore[arg-type]  # a table, not a FromClause


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened on a day of the desk."""

    kind: str
    day: date
    request_id: str | None = None
    rider: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with its number in the journal."""

    seq: int
    at: datetime
    event: Event


class Journal:
    """Append-only table of events.

    Args:
        url: Database URL, for example sqlite:///desk.db or postgresql+psycopg://user@host/name.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _engine(url)
        self.lock: IO[str] | Connection | None = None
        self.is_broken = False
        try:
            self._acquire_lock()
            migrate(self.engine)
        except OperationalError as error:
            self.close()
            raise HundredfoldError(
                f"cannot open the database {_without_password(url)}: {str(error.orig).splitlines()[0]}."
            ) from error
        except BaseException:
            self.close()
            raise

    def append(self, events: Iterable[Event], at: datetime) -> list[StoredEvent]:
        """Write events in one transaction; they are on disk when this returns."""
        rows = list(events)
        stored = []
        with self._transaction() as connection:
            for row in rows:
                values = {
                    "at": at.astimezone(UTC),
                    "day": row.day,
                    "kind": row.kind,
                    "request_id": row.request_id,
                    "rider": row.rider,
                    "data": row.data,
                }
                result = connection.execute(INSERT, values)
                assert result.inserted_primary_key is not None
                stored.append(StoredEvent(int(result.inserted_primary_key[0]), at, row))
        return stored

    def of_day(self, day: date) -> list[StoredEvent]:
        """Events of a day, oldest first."""
        return list(self._select(JournalRow.day == day))

    def of_rider(self, rider: str) -> list[StoredEvent]:
        """Events about a rider, oldest first."""
        return list(self._select(JournalRow.rider == rider))

    def of_kinds(self, *kinds: str, since: datetime | None = None) -> Iterator[StoredEvent]:
        """Events of some kinds, oldest first."""
        recent = () if since is None else (JournalRow.at >= since.astimezone(UTC),)
        return self._select(JournalRow.kind.in_(kinds), *recent)

    def all_events(self) -> Iterator[StoredEvent]:
        """The whole journal, oldest first."""
        return self._select()

    def is_reachable(self) -> bool:
        """Whether the database answers and this process may write to it."""
        if self.is_broken:
            return False
        try:
            with self.engine.connect() as connection:
                return connection.scalar(select(1)) == 1
        except OperationalError:
            return False

    def close(self) -> None:
        """Release the lock and all connections."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None
        self.engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A transaction for writing; in PostgreSQL on the connection that holds the lock."""
        if not isinstance(self.lock, Connection):
            with self.engine.begin() as connection:
                yield connection
            return
        if self.is_broken:
            raise JournalError("the connection to the database, and with it the lock, was lost; restart the desk.")
        try:
            with self.lock.begin():
                yield self.lock
        except DBAPIError as error:
            # With the connection the lock is gone: another desk may write now.
            self.is_broken = error.connection_invalidated
            raise

    def _select(self, *conditions: Any) -> Iterator[StoredEvent]:
        return _select_events(self.engine, *conditions)

    def _acquire_lock(self) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        if self.engine.dialect.name == "sqlite":
            self.lock = _lock_file(self.engine.url.database, deadline)
            return
        connection = self.engine.connect()
        self.lock = connection
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:number)"), {"number": LOCK_NUMBER}):
            connection.rollback()
            _wait_for_lock(deadline, _without_password(self.url))
        connection.commit()


def read_journal(url: str) -> list[tuple[int, Event]]:
    """Numbered events of a database, which a desk may be using at the same time."""
    engine = _engine(url)
    try:
        return [(stored.seq, stored.event) for stored in _select_events(engine)]
    except DBAPIError as error:
        raise SettingsError(f"{_without_password(url)} is not the database of a desk.") from error
    finally:
        engine.dispose()


def _select_events(engine: Engine, *conditions: Any) -> Iterator[StoredEvent]:
    query = select(JournalRow.__table__).where(*conditions).order_by(JournalRow.seq)
    with engine.connect() as connection:
        for row in connection.execution_options(yield_per=1000).execute(query):
            # SQLite stores no time zone; all times are UTC.
            at = row.at if row.at.tzinfo else row.at.replace(tzinfo=UTC)
            yield StoredEvent(row.seq, at, Event(row.kind, row.day, row.request_id, row.rider, row.data))


def migrate(engine: Engine) -> None:
    """Create the tables, or update those of an older version."""
    config = Config()
    config.set_main_option("script_location", str(resources.files("hundredfold.desk") / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise HundredfoldError(
                "the database was written by another version of hundredfold; update hundredfold, or use another "
                "--database-url."
            ) from error


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise SettingsError(f"--database-url must name sqlite or postgresql, got {parsed.get_backend_name()}.")
        in_memory = parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:")
        # A database in memory belongs to one connection, which all threads share.
        shared = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        options: dict[str, Any] = shared if in_memory else {}
        # Riders are among the parameters, and errors may be logged.
        engine = create_engine(parsed, hide_parameters=True, **options)
    except (ArgumentError, NoSuchModuleError) as error:
        raise SettingsError(
            f"{_without_password(url)!r} is not a database URL; expected for example sqlite:///desk.db or "
            "postgresql+psycopg://user@localhost/desk."
        ) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # A committed row survives the loss of power.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA busy_timeout={BUSY_MILLISECONDS}")
    cursor.close()


def _lock_file(database: str | None, deadline: float) -> IO[str] | None:
    """An exclusive lock beside the database file, None in memory."""
    import fcntl

    if not database or database == ":memory:":
        return None
    path = Path(f"{database}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise HundredfoldError(f"cannot write {path}: {error.strerror}.") from error
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                _wait_for_lock(deadline, database)
            except HundredfoldError:
                file.close()
                raise
        else:
            return file


def _wait_for_lock(deadline: float, name: str) -> None:
    if time.monotonic() > deadline:
        raise HundredfoldError(f"another desk is using {name}; stop it first, or use another --database-url.")
    time.sleep(0.05)


def _without_password(url: str) -> str:
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return "(unreadable URL)"
