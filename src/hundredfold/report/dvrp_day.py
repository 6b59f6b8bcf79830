"""Figures of one day: routes on a map without tiles, a time line per vehicle, every customer's time windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from hundredfold.core.formatting import format_clock, format_count, format_number
from hundredfold.report.figures import BLUE, COLOURS, VERMILION

Day = dict[str, Any]
Frame = tuple[tuple[float, float], tuple[float, float]]  # (south, north), (west, east)

GREEN, GREY = COLOURS[2], COLOURS[-1]
VEHICLE_COLOURS = COLOURS[:-1]
MAP_HEIGHT = 400
ROW_PIXELS = 21
VEHICLE_PIXELS = 46
# Size of the map on a phone and of a letter in it, in pixels, to leave out labels that would overlap.
PHONE_WIDTH, PHONE_HEIGHT = 325, 300
LETTER_WIDTH, LETTER_HEIGHT = 5.5, 12
# From the middle of a point to its label; also half the size of the depot, so that stops there have room.
LABEL_GAP = 4
KM_PER_DEGREE = 111.2
# Longest list of stops at one place of the map, and the least share of the time line between two numbers.
MAX_LISTED_STOPS = 4
NUMBER_GAP = 0.05
# Where the numbers of a vehicle's stops may stand beside their place, and where the name of a place, in this order.
LABEL_SIDES = ("top center", "middle right", "middle left", "top right", "top left", "bottom right", "bottom left")
NAME_SIDES = ("bottom center", "top center", "middle right", "middle left")


def route_map(day: Day, solution: Day, title: str, compare: Day | None = None) -> go.Figure:
    """Routes of a solution, a colour per vehicle; `compare` is the solution to compare with.

    Stops carry their number on the route, which is also that of the time line, where there is room for it on a phone.
    """
    city, calls = day["city"], day["calls"]
    figure = go.Figure()
    frame = _frame(day)
    is_degrees = city["unit"] == "degrees"
    ratio = 1.0 / math.cos(math.radians(sum(frame[0]) / 2)) if is_degrees else 1.0
    room = _LabelRoom(frame, ratio)
    if city["points"][city["depot"]]:
        room.occupy(city["points"][city["depot"]])
    if is_degrees:
        _add_scale(figure, frame, room)
    labels = [_stop_labels(_cells_of(route, calls), city, room) for route in solution["routes"]]
    _add_places(figure, city, room)
    for route, (numbers, sides) in zip(solution["routes"], labels, strict=True):
        path = [city["depot"], *_cells_of(route, calls), city["depot"]]
        points = [city["points"][cell] or (None, None) for cell in path]
        colour = VEHICLE_COLOURS[route["vehicle"] % len(VEHICLE_COLOURS)]
        figure.add_scatter(
            x=[point[1] for point in points],
            y=[point[0] for point in points],
            text=["", *numbers, ""],
            hovertext=_stop_texts(day, route, path),
            name=f"vehicle {route['vehicle'] + 1}",
            mode="lines+markers+text",
            textposition=["top center", *sides, "top center"],
            textfont={"size": 9, "color": colour},
            cliponaxis=False,
            line={"color": colour, "width": 2},
            # An arrow points along the leg that leads to its stop.
            marker={"symbol": "arrow", "angleref": "previous", "size": 9, "color": colour},
            opacity=0.85,
            hovertemplate="%{hovertext}<extra>vehicle " + str(route["vehicle"] + 1) + "</extra>",
        )
    _add_depot(figure, city)
    used = format_count(len(solution["routes"]), "vehicle")
    subtitle = f"{format_number(round(solution['driving_minutes'], 1))} driving minutes with {used}"
    if compare is not None:
        saved = compare["driving_minutes"] - solution["driving_minutes"]
        subtitle += f", {format_number(round(abs(saved), 1))} {'fewer' if saved >= 0 else 'more'}"
    subtitle += (
        ". Numbers, where there is room for them, count the stops of each vehicle; lines go straight from stop to "
        "stop, not along streets. Touch a stop for its number, time, place and customer, or a vehicle's name to hide "
        "its route."
    )
    figure.update_layout(
        title={"text": title, "subtitle": {"text": subtitle}},
        height=MAP_HEIGHT,
        hovermode="closest",
        showlegend=True,
        margin={"l": 4, "r": 4, "t": 8, "b": 4},
    )
    figure.update_xaxes(visible=False, range=_padded(*frame[1]))
    figure.update_yaxes(visible=False, range=_padded(*frame[0]), scaleanchor="x", scaleratio=ratio)
    return figure


class _LabelRoom:
    """Which part of the map is taken by labels, in pixels of a phone; on larger screens they are further apart.

    Args:
        frame: What the map shows.
        ratio: Length of a unit northwards relative to one eastwards.
    """

    def __init__(self, frame: Frame, ratio: float) -> None:
        south_north, west_east = (_padded(*bounds) for bounds in frame)
        self.origin = (south_north[0], west_east[0])
        width, height = west_east[1] - west_east[0], ratio * (south_north[1] - south_north[0])
        self.scale = min(PHONE_WIDTH / width, PHONE_HEIGHT / height)
        self.ratio = ratio
        self.size = (self.scale * width, self.scale * height)
        self.taken: list[tuple[float, float, float, float]] = []  # left, right, lower, upper

    def occupy(self, point: Sequence[float]) -> None:
        """Take the square of the depot."""
        column, line = self._pixels(point)
        self.taken.append((column - LABEL_GAP, column + LABEL_GAP, line - LABEL_GAP, line + LABEL_GAP))

    def place(self, point: Sequence[float] | None, text: str, sides: Sequence[str]) -> str | None:
        """Take the first of these sides of a point on which the text has room; None if it has none."""
        if point is None:
            return None
        for side in sides:
            left, right, lower, upper = box = self._box(point, text, side)
            # Half a label may reach into the margin of the figure.
            if left < -LETTER_HEIGHT or right > self.size[0] + LETTER_HEIGHT:
                continue
            if lower < 0 or upper > self.size[1] + LETTER_HEIGHT / 2:
                continue
            if all(right <= one[0] or left >= one[1] or upper <= one[2] or lower >= one[3] for one in self.taken):
                self.taken.append(box)
                return side
        return None

    def occupy_scale(self, point: Sequence[float], length: float, text: str) -> None:
        """Take the scale bar, which begins at a point and has this length in units eastwards, and its text above."""
        left, right, lower, upper = self._box(point, text, "top right")
        left -= LABEL_GAP
        self.taken.append((left, max(right, left + self.scale * length), lower - 2 * LABEL_GAP, upper + LABEL_GAP))

    def _pixels(self, point: Sequence[float]) -> tuple[float, float]:
        y, x = point
        return self.scale * (x - self.origin[1]), self.scale * self.ratio * (y - self.origin[0])

    def _box(self, point: Sequence[float], text: str, side: str) -> tuple[float, float, float, float]:
        column, line = self._pixels(point)
        width = LETTER_WIDTH * len(text)
        vertical, _, horizontal = side.partition(" ")
        left = {"left": column - width - LABEL_GAP, "right": column + LABEL_GAP}.get(horizontal, column - width / 2)
        lower = {"top": line + LABEL_GAP, "bottom": line - LABEL_GAP - LETTER_HEIGHT}
        bottom = lower.get(vertical, line - LETTER_HEIGHT / 2)
        return left, left + width, bottom, bottom + LETTER_HEIGHT


def _stop_labels(cells: list[int], city: Day, room: _LabelRoom) -> tuple[list[str], list[str]]:
    """Text and its position at every stop of a route: a place shows all numbers of a vehicle once, if there is room.

    Args:
        cells: Places of the stops, in order.
        city: All places.
        room: Where there is room; the labels take theirs.
    """
    numbers: dict[int, list[str]] = {}
    for number, cell in enumerate(cells, 1):
        numbers.setdefault(cell, []).append(str(number))
    side_of = {cell: room.place(city["points"][cell], _shortened(of), LABEL_SIDES) for cell, of in numbers.items()}
    texts = [_shortened(numbers.pop(cell, [])) if side_of[cell] else "" for cell in cells]
    return texts, [side_of[cell] or LABEL_SIDES[0] for cell in cells]


def _shortened(numbers: list[str]) -> str:
    """A list of stops; the middle of a long one is left out: 5, 6 ... 44."""
    if len(numbers) <= MAX_LISTED_STOPS:
        return ", ".join(numbers)
    return f"{numbers[0]}, {numbers[1]} \N{HORIZONTAL ELLIPSIS} {numbers[-1]}"


def _cells_of(route: Day, calls: list[Day]) -> list[int]:
    """Places of the stops of a route."""
    return [calls[(stop - 1) // 2]["cells"][(stop - 1) % 2] for stop in route["stops"]]


def timetable(day: Day, solution: Day) -> list[list[str | float | None]]:
    """A row per stop: vehicle, number, time, pickup or dropoff, customer, place, customers on board afterwards."""
    rows: list[list[str | float | None]] = []
    for route in sorted(solution["routes"], key=lambda route: int(route["vehicle"])):
        vehicle = f"vehicle {route['vehicle'] + 1}"
        stops = zip(route["stops"], route["stop_minutes"], _cells_of(route, day["calls"]), strict=True)
        for number, ((stop, minute, cell), aboard) in enumerate(zip(stops, _on_board(route["stops"]), strict=True), 1):
            customer = day["calls"][(stop - 1) // 2]["customer"]
            what = "pickup" if stop % 2 else "dropoff"
            rows.append(
                [vehicle, number, format_clock(minute), what, str(customer), day["city"]["names"][cell], aboard]
            )
    return rows


def vehicle_timeline(day: Day, solution: Day, title: str) -> go.Figure:
    """A row per vehicle against the time of day: when it drives or waits, with whom, and its stops in order."""
    figure = go.Figure()
    routes = sorted(solution["routes"], key=lambda route: int(route["vehicle"]))
    ends = [route[key] for route in routes for key in ("start_minutes", "end_minutes")]
    gap = NUMBER_GAP * (max(ends) - min(ends)) if ends else 0.0
    for row, route in enumerate(routes):
        _add_vehicle(figure, row, day, route, gap)
    subtitle = (
        "Stops in order, numbered as on the map, against the time of day. A band is a vehicle with customers on board, "
        "wider for more of them; a thin line is an empty one, on its way or waiting. Touch a stop without a number for "
        "its time, place and customer."
    )
    hours = range(0, 49, 2)
    figure.update_layout(
        title={"text": title, "subtitle": {"text": subtitle}},
        height=VEHICLE_PIXELS * len(routes) + 110,
        hovermode="closest",
        showlegend=True,
    )
    figure.update_xaxes(
        title_text="time of day", tickvals=[60 * hour for hour in hours], ticktext=[f"{hour % 24}:00" for hour in hours]
    )
    figure.update_yaxes(
        tickvals=list(range(len(routes))),
        ticktext=[f"vehicle {route['vehicle'] + 1} " for route in routes],
        range=[len(routes) - 0.4, -0.6],
        showgrid=False,
    )
    return figure


def _add_vehicle(figure: go.Figure, row: int, day: Day, route: Day, gap: float) -> None:
    """One row of the time line; numbers stand at least `gap` minutes apart, so that they can be read on a phone."""
    colour = VEHICLE_COLOURS[route["vehicle"] % len(VEHICLE_COLOURS)]
    times = [route["start_minutes"], *route["stop_minutes"], route["end_minutes"]]
    spans = [(times[0], times[-1], {"color": GREY, "width": 2}, 1.0)]
    for aboard, begin, end in zip(_on_board(route["stops"]), times[1:-1], times[2:], strict=True):
        if aboard:
            spans.append((begin, end, {"color": colour, "width": 4 + 3 * min(aboard, 4)}, 0.45))
    for begin, end, line, opacity in spans:
        figure.add_scatter(
            x=[begin, end], y=[row, row], mode="lines", line=line, opacity=opacity, showlegend=False, hoverinfo="skip"
        )
    path = [day["city"]["depot"], *_cells_of(route, day["calls"]), day["city"]["depot"]]
    texts = _stop_texts(day, route, path)[1:-1]
    for name, is_pickup, symbol, side in (
        ("pickup", 1, "triangle-up", "top"),
        ("dropoff", 0, "triangle-down", "bottom"),
    ):
        chosen = [index for index, stop in enumerate(route["stops"]) if stop % 2 == is_pickup]
        figure.add_scatter(
            x=[route["stop_minutes"][index] for index in chosen],
            y=[row] * len(chosen),
            text=_spaced_numbers(chosen, route["stop_minutes"], gap),
            hovertext=[texts[index] for index in chosen],
            name=name,
            mode="markers+text",
            textposition=f"{side} center",
            textfont={"size": 9},
            marker={"symbol": symbol, "size": 8, "color": colour},
            legendgroup=name,
            showlegend=row == 0,
            hovertemplate="%{hovertext}<extra></extra>",
        )


def _spaced_numbers(stops: list[int], minutes: list[float], gap: float) -> list[str]:
    """Numbers of these stops of a route, empty where one would overlap with the last one shown."""
    texts: list[str] = []
    last = -math.inf
    for index in stops:
        shown = minutes[index] >= last + gap
        texts.append(str(index + 1) if shown else "")
        last = minutes[index] if shown else last
    return texts


def _on_board(stops: list[int]) -> list[int]:
    """Customers on board after each stop; pickups are odd."""
    aboard, counts = 0, []
    for stop in stops:
        aboard += 1 if stop % 2 else -1
        counts.append(aboard)
    return counts


def window_chart(day: Day) -> go.Figure:
    """A row per customer: requested and booked windows, the scheduled ride, refused offers."""
    calls = sorted(enumerate(day["calls"]), key=lambda item: item[1]["requested"][0][0], reverse=True)
    ride = _rides(day["after"])
    rows = [f"{format_clock(call['requested'][0][0])} {call['purpose']} " for _, call in calls]
    places = list(range(len(calls)))
    zero = [call["requested"][0][0] for _, call in calls]
    figure = go.Figure()
    # Pickup above, dropoff below the middle of the row: the two windows often overlap in time.
    for end, (name, colour) in enumerate((("pickup", BLUE), ("dropoff", VERMILION))):
        place = {"width": 0.4, "offset": (0.02, -0.42)[end], "orientation": "h"}
        moved = [k for k, (_, call) in enumerate(calls) if call["requested"][end] != call["booked"][end]]
        figure.add_bar(
            base=[call["booked"][end][0] - zero[k] for k, (_, call) in enumerate(calls)],
            x=[call["booked"][end][1] - call["booked"][end][0] for _, call in calls],
            y=places,
            name=name,
            **place,
            marker={"color": colour, "opacity": 0.6, "line": {"width": 0}},
            hovertext=[_call_text(call) for _, call in calls],
            hovertemplate="%{hovertext}<extra></extra>",
        )
        figure.add_bar(
            base=[calls[k][1]["requested"][end][0] - zero[k] for k in moved],
            x=[calls[k][1]["requested"][end][1] - calls[k][1]["requested"][end][0] for k in moved],
            y=moved,
            name="as requested",
            legendrank=1001,
            legendgroup="requested",
            showlegend=end == 0,
            **place,
            marker={"color": "rgba(0,0,0,0)", "line": {"width": 1.5, "color": GREY}},
            hoverinfo="skip",
        )
    served = [(k, ride[place]) for k, (place, _) in enumerate(calls) if place in ride]
    figure.add_scatter(
        x=[t for k, times in served for t in (times[0] - zero[k], times[1] - zero[k], None)],
        y=[y for k, _ in served for y in (k, k, None)],
        name="ride",
        legendrank=1002,
        mode="lines+markers",
        line={"color": GREEN, "width": 2},
        marker={"color": GREEN, "size": 6},
        hoverinfo="skip",
    )
    refused = [k for k, (_, call) in enumerate(calls) if call["response"] == "refused"]
    figure.add_scatter(
        x=[-38] * len(refused),
        y=refused,
        text=[_call_text(calls[k][1]) for k in refused],
        name="refused",
        legendrank=1002,
        mode="markers",
        marker={"symbol": "x", "size": 8, "color": GREY},
        hovertemplate="%{text}<extra></extra>",
    )
    figure.update_layout(
        title={
            "text": "Time windows of that day",
            "subtitle": {
                "text": "One row per customer, in minutes from the start of the requested pickup "
                "window: a ride begins in the upper window and ends in the lower one; frames are "
                "windows before they moved, crosses refused offers."
            },
        },
        barmode="overlay",
        height=ROW_PIXELS * len(calls) + 130,
        hovermode="closest",
        showlegend=True,
    )
    figure.update_xaxes(title_text="minutes from requested pickup", dtick=30)
    figure.update_yaxes(tickvals=places, ticktext=rows, range=[-0.7, len(calls) - 0.3], showgrid=False)
    return figure


def _add_places(figure: go.Figure, city: Day, room: _LabelRoom) -> None:
    """All places as dots, with the names for which there is room, from north to south."""
    known = [k for k, point in enumerate(city["points"]) if point and k != city["depot"]]
    northern = sorted(known, key=lambda k: -float(city["points"][k][0]))
    placed = {k: room.place(city["points"][k], city["names"][k], NAME_SIDES) for k in northern}
    named = [k for k in northern if placed[k]]
    figure.add_scatter(
        x=[city["points"][k][1] for k in named],
        y=[city["points"][k][0] for k in named],
        text=[escape(city["names"][k]) for k in named],
        # Without a marker names would begin on the dots.
        mode="markers+text",
        marker={"size": 5, "opacity": 0},
        textposition=[placed[k] for k in named],
        textfont={"size": 9, "color": GREY},
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=[city["points"][k][1] for k in known],
        y=[city["points"][k][0] for k in known],
        text=[escape(city["names"][k]) for k in known],
        name="places",
        mode="markers",
        marker={"color": GREY, "size": 5, "opacity": 0.6},
        showlegend=False,
        hovertemplate="%{text}<extra></extra>",
    )


def _add_depot(figure: go.Figure, city: Day) -> None:
    point = city["points"][city["depot"]]
    if point is None:
        return
    figure.add_scatter(
        x=[point[1]],
        y=[point[0]],
        name="depot",
        mode="markers",
        marker={"symbol": "square", "size": 12, "color": GREY, "line": {"width": 2}},
        hovertemplate="depot<extra></extra>",
    )


def _frame(day: Day) -> Frame:
    """(south, north), (west, east) of all stops of the day."""
    city = day["city"]
    cells = {city["depot"], *(cell for call in day["calls"] for cell in call["cells"])}
    known = [city["points"][cell] for cell in cells if city["points"][cell]]
    first, second = ([point[axis] for point in known] for axis in (0, 1))
    return (min(first), max(first)), (min(second), max(second))


def _padded(low: float, high: float) -> list[float]:
    padding = 0.05 * (high - low) or 1.0
    return [low - padding, high + padding]


def _add_scale(figure: go.Figure, frame: Frame, room: _LabelRoom) -> None:
    """A scale bar of a round length in the lower left corner, which takes its room."""
    (south, north), (west, east) = frame
    km_per_degree = KM_PER_DEGREE * math.cos(math.radians((south + north) / 2))
    max_km = 0.2 * (east - west) * km_per_degree
    if max_km <= 0:
        return
    power = 10.0 ** math.floor(math.log10(max_km))
    length = max(step * power for step in (1, 2, 5) if step * power <= max_km)
    text = f"{length:g} km"
    room.occupy_scale((south, west), length / km_per_degree, text)
    figure.add_scatter(
        x=[west, west + length / km_per_degree],
        y=[south, south],
        name="scale",
        mode="lines+text",
        text=[text, ""],
        textfont={"size": 9},
        textposition="top right",
        line={"color": GREY, "width": 3},
        showlegend=False,
        hoverinfo="skip",
    )


def _stop_texts(day: Day, route: Day, path: list[int]) -> list[str]:
    """Hover texts of all stops of a route, including the depot at both ends."""
    names = day["city"]["names"]
    texts = [f"{format_clock(route['start_minutes'])} leaves the depot"]
    stops = zip(route["stops"], route["stop_minutes"], path[1:-1], strict=True)
    for number, (stop, minute, cell) in enumerate(stops, 1):
        call = day["calls"][(stop - 1) // 2]
        action = "picks up" if stop % 2 else "drops off"
        texts.append(f"stop {number}: {format_clock(minute)} {action} {_who(call)}<br>{escape(names[cell])}")
    return [*texts, f"{format_clock(route['end_minutes'])} back at the depot"]


def _call_text(call: Day) -> str:
    earlier, later = call["offer"]
    pickup_moved = f"pickup {abs(earlier)} min {'earlier' if earlier >= 0 else 'later'}"
    dropoff_moved = f"dropoff {abs(later)} min {'later' if later >= 0 else 'earlier'}"
    outcome = call["response"]
    if outcome != "no offer":
        outcome += f": {pickup_moved}, {dropoff_moved}"
    pickup, dropoff = (f"{format_clock(w[0])} to {format_clock(w[1])}" for w in call["booked"])
    return f"{_who(call)} (flexible: {call['type']})<br>pickup {pickup}, dropoff {dropoff}<br>{outcome}"


def _who(call: Day) -> str:
    """Customer and purpose of a call."""
    return f"customer {escape(str(call['customer']))}, {escape(call['purpose'])}"


def _rides(solution: Day) -> dict[int, tuple[float, float]]:
    """Pickup and dropoff minute of every served call."""
    times = {
        stop: minute
        for route in solution["routes"]
        for stop, minute in zip(route["stops"], route["stop_minutes"], strict=True)
    }
    return {(stop - 1) // 2: (minute, times[stop + 1]) for stop, minute in times.items() if stop % 2}
