"""Figures of one day: routes on a map without tiles, and every customer's time windows."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import plotly.graph_objects as go

from hundredfold.core.formatting import format_count, format_number
from hundredfold.report.figures import BLUE, COLOURS, VERMILION

Day = dict[str, Any]

GREEN, GREY = COLOURS[2], COLOURS[-1]
VEHICLE_COLOURS = COLOURS[:-1]
MAP_HEIGHT = 400
ROW_PIXELS = 21
KM_PER_DEGREE = 111.2


def route_map(day: Day, solution: Day, title: str, compare: Day | None = None) -> go.Figure:
    """Routes of a solution, a colour per vehicle; `compare` is the solution to compare with."""
    city, calls = day["city"], day["calls"]
    figure = go.Figure()
    _add_places(figure, city)
    for route in solution["routes"]:
        cells = [calls[(stop - 1) // 2]["cells"][(stop - 1) % 2] for stop in route["stops"]]
        path = [city["depot"], *cells, city["depot"]]
        points = [city["points"][cell] or (None, None) for cell in path]
        colour = VEHICLE_COLOURS[route["vehicle"] % len(VEHICLE_COLOURS)]
        figure.add_scatter(
            x=[point[1] for point in points],
            y=[point[0] for point in points],
            text=_stop_texts(day, route, path),
            name=f"vehicle {route['vehicle'] + 1}",
            mode="lines+markers",
            line={"color": colour, "width": 2},
            # An arrow points along the leg that leads to its stop.
            marker={"symbol": "arrow", "angleref": "previous", "size": 9, "color": colour},
            opacity=0.85,
            hovertemplate="%{text}<extra>vehicle " + str(route["vehicle"] + 1) + "</extra>",
        )
    _add_depot(figure, city)
    used = format_count(len(solution["routes"]), "vehicle")
    subtitle = f"{format_number(round(solution['driving_minutes'], 1))} driving minutes with {used}"
    if compare is not None:
        saved = compare["driving_minutes"] - solution["driving_minutes"]
        subtitle += f", {format_number(round(abs(saved), 1))} {'fewer' if saved >= 0 else 'more'}"
    subtitle += ". Lines go straight from stop to stop; touch a vehicle's name to hide it."
    figure.update_layout(
        title={"text": title, "subtitle": {"text": subtitle}},
        height=MAP_HEIGHT,
        hovermode="closest",
        showlegend=True,
        margin={"l": 4, "r": 4, "t": 8, "b": 4},
    )
    frame = _frame(day)
    ratio = 1.0
    if city["unit"] == "degrees":
        ratio = 1.0 / math.cos(math.radians(sum(frame[0]) / 2))
        _add_scale(figure, frame)
    figure.update_xaxes(visible=False, range=_padded(*frame[1]))
    figure.update_yaxes(visible=False, range=_padded(*frame[0]), scaleanchor="x", scaleratio=ratio)
    return figure


def window_chart(day: Day) -> go.Figure:
    """A row per customer: requested and booked windows, the scheduled ride, refused offers."""
    calls = sorted(enumerate(day["calls"]), key=lambda item: item[1]["requested"][0][0], reverse=True)
    ride = _rides(day["after"])
    rows = [f"{clock(call['requested'][0][0])} {call['purpose']} " for _, call in calls]
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


def clock(minutes: float) -> str:
    """Minutes after midnight as a time of day: 489.6 is 08:10."""
    whole = round(minutes)
    return f"{whole // 60:02d}:{whole % 60:02d}"


def _add_places(figure: go.Figure, city: Day) -> None:
    known = [k for k, point in enumerate(city["points"]) if point and k != city["depot"]]
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


def _frame(day: Day) -> tuple[tuple[float, float], tuple[float, float]]:
    """(south, north), (west, east) of all stops of the day."""
    city = day["city"]
    cells = {city["depot"], *(cell for call in day["calls"] for cell in call["cells"])}
    known = [city["points"][cell] for cell in cells if city["points"][cell]]
    first, second = ([point[axis] for point in known] for axis in (0, 1))
    return (min(first), max(first)), (min(second), max(second))


def _padded(low: float, high: float) -> list[float]:
    padding = 0.05 * (high - low) or 1.0
    return [low - padding, high + padding]


def _add_scale(figure: go.Figure, frame: tuple[tuple[float, float], tuple[float, float]]) -> None:
    """A scale bar of a round length in the lower left corner."""
    (south, north), (west, east) = frame
    km_per_degree = KM_PER_DEGREE * math.cos(math.radians((south + north) / 2))
    max_km = 0.2 * (east - west) * km_per_degree
    if max_km <= 0:
        return
    power = 10.0 ** math.floor(math.log10(max_km))
    length = max(step * power for step in (1, 2, 5) if step * power <= max_km)
    figure.add_scatter(
        x=[west, west + length / km_per_degree],
        y=[south, south],
        name="scale",
        mode="lines+text",
        text=[f"{length:g} km", ""],
        textposition="top right",
        line={"color": GREY, "width": 3},
        showlegend=False,
        hoverinfo="skip",
    )


def _stop_texts(day: Day, route: Day, path: list[int]) -> list[str]:
    """Hover texts of all stops of a route, including the depot at both ends."""
    names = day["city"]["names"]
    texts = [f"{clock(route['start_minutes'])} leaves the depot"]
    for stop, minute, cell in zip(route["stops"], route["stop_minutes"], path[1:-1], strict=True):
        call = day["calls"][(stop - 1) // 2]
        action = "picks up" if stop % 2 else "drops off"
        texts.append(
            f"{clock(minute)} {action} customer {call['customer']}, {escape(call['purpose'])}<br>{escape(names[cell])}"
        )
    return [*texts, f"{clock(route['end_minutes'])} back at the depot"]


def _call_text(call: Day) -> str:
    earlier, later = call["offer"]
    outcome = {
        "no offer": "no offer",
        "accepted": f"accepted: pickup {earlier} min earlier, dropoff {later} min later",
        "refused": f"refused: pickup {earlier} min earlier, dropoff {later} min later",
    }
    pickup, dropoff = (f"{clock(w[0])} to {clock(w[1])}" for w in call["booked"])
    return (
        f"customer {call['customer']}, {escape(call['purpose'])} (flexible: {call['type']})"
        f"<br>pickup {pickup}, dropoff {dropoff}<br>{outcome[call['response']]}"
    )


def _rides(solution: Day) -> dict[int, tuple[float, float]]:
    """Pickup and dropoff minute of every served call."""
    times = {
        stop: minute
        for route in solution["routes"]
        for stop, minute in zip(route["stops"], route["stop_minutes"], strict=True)
    }
    return {(stop - 1) // 2: (minute, times[stop + 1]) for stop, minute in times.items() if stop % 2}
