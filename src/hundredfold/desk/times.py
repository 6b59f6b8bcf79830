"""The desk's clock: instants are kept in UTC, days and times of day are those of its time zone.

Python compares and adds datetimes of one zone by the hands of the clock, which is wrong by an hour
when daylight saving time begins or ends. Everything that measures time here therefore uses UTC.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hundredfold.core.errors import SettingsError

__all__ = ["DeskClock", "machine_zone", "zone_of"]

LOCAL_TIME_FILE: Final = Path("/etc/localtime")


def zone_of(name: str | None) -> tzinfo:
    """The time zone of this name, such as America/New_York; None for that of the machine."""
    if name is None:
        return machine_zone()
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise SettingsError(
            f"there is no time zone {name!r}; expected a name of the IANA database, such as America/New_York "
            "(where all are missing: pip install tzdata)."
        ) from error


def machine_zone() -> tzinfo:
    """The time zone of this machine with its rules for daylight saving time; UTC if none is set."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if name:
        return zone_of(name)
    if LOCAL_TIME_FILE.is_file():
        with LOCAL_TIME_FILE.open("rb") as file:
            return ZoneInfo.from_file(file)
    return UTC


class DeskClock:
    """The present time, and times of day of the desk's days.

    Args:
        zone: Time zone of days and times of day.
        now: The present time, with any time zone.
    """

    def __init__(self, zone: tzinfo, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.zone, self._now = zone, now

    def now(self) -> datetime:
        """The present time in UTC."""
        return self._now().astimezone(UTC)

    def today(self) -> date:
        """The present day."""
        return self.now().astimezone(self.zone).date()

    def minute(self) -> float:
        """Minutes after midnight that the clock shows."""
        local = self.now().astimezone(self.zone)
        return 60.0 * local.hour + local.minute

    def local(self, moment: datetime) -> datetime:
        """The day and the time of day of a moment; one without a time zone is local already."""
        return moment if moment.tzinfo is None else moment.astimezone(self.zone)

    def at(self, day: date, minute: float) -> datetime:
        """When the clock shows this many minutes after the midnight that begins the day."""
        return datetime.combine(day, time(), self.zone) + timedelta(minutes=minute)
