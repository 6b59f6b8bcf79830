"""A raw export of an operator: semicolons, decimal commas, Windows-1252, text ids, single times, no flexibility."""

from __future__ import annotations

import random
from datetime import date, timedelta

HEADER = ("Client", "Date", "From", "From lat", "From lon", "To", "To lat", "To lon", "Pickup time", "Appointment")
HEADER += ("Purpose", "Passengers", "Wheelchair", "Remarks")
DESTINATIONS = {
    "Klinikum Süd": (48.1103, 11.4698),
    "Tagesstätte Lindenhof": (48.1512, 11.5307),
    "Bahnhof": (48.1402, 11.5600),
    "Dialysezentrum": (48.1699, 11.5904),
    "Markthalle": (48.1350, 11.5763),
}


def write_operator_trips(path, customers=24, days=5, trips=100):
    """Write about a hundred trips over a few days: most customers travel somewhere and home again.

    Args:
        path: File to write.
        customers: People with a home each.
        days: Working days from Monday, 2 March 2026, on.
        trips: Rows of the file.
    """
    draw = random.Random(20260302)
    homes = {
        f"K-{100 + number}/{draw.choice('ABC')}": (
            f"Gartenstraße {number + 1}",
            (48.09 + 0.1 * draw.random(), 11.45 + 0.16 * draw.random()),
        )
        for number in range(customers)
    }
    rows = []
    while len(rows) < trips:
        day = date(2026, 3, 2) + timedelta(days=len(rows) % days)
        client = draw.choice(sorted(homes))
        place = draw.choice(sorted(DESTINATIONS))
        hour, minute = draw.randrange(7, 15), draw.choice((0, 10, 15, 30, 45))
        wheelchair = "ja" if client.endswith("A") else "nein"
        people = draw.choice((1, 1, 1, 2))
        there, back = homes[client], (place, DESTINATIONS[place])
        rows.append(
            (client, day, *there, *back, "", f"{hour}:{minute:02d}", "Arzttermin (medical)", people, wheelchair)
        )
        rows.append((client, day, *back, *there, f"{hour + 2}:{minute:02d}", "", "return home", people, wheelchair))
    lines = [HEADER, *(_cells(*row) for row in sorted(rows[:trips], key=lambda row: row[1]))]
    path.write_bytes("\r\n".join(";".join(cells) for cells in lines).encode("cp1252"))
    return path


def _cells(client, day, start, start_point, end, end_point, pickup, appointment, purpose, people, wheelchair):
    places = [
        text for name, point in ((start, start_point), (end, end_point)) for text in (name, *map(_decimal, point))
    ]
    return (client, f"{day:%d.%m.%Y}", *places, pickup, appointment, purpose, str(people), wheelchair, "")


def _decimal(degrees):
    return f"{degrees:.4f}".replace(".", ",")
