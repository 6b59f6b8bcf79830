"""Pictures of dvrp: the trips booked so far on a map, the current call, driving minutes."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hundredfold.core.batch import Array
from hundredfold.core.formatting import format_clock
from hundredfold.envs.dvrp.env import Dvrp, improvement_pct
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.envs.rendering import BLUE, CARD, GREEN, INK, LINE, RED, SOFT, Canvas, LastStep, Point
from hundredfold.routing.problem import DROPOFF, PICKUP


class DvrpRendering:
    """A map of the city and, beside it, the call that waits for an offer."""

    fps: ClassVar[int] = 3
    width: ClassVar[int] = 960
    height: ClassVar[int] = 560
    map_pixels: ClassVar[int] = 520

    def __init__(self, env: Dvrp) -> None:
        self.env = env

    def text(self, last: LastStep) -> str:
        return "\n".join(self._lines())

    def image(self, last: LastStep) -> Array:
        canvas = Canvas(self.width, self.height)
        canvas.box((20, 20), (self.map_pixels, self.map_pixels), CARD, LINE)
        city, state = self.env.population.city, self.env.true_state
        for cell in range(city.num_cells):
            canvas.circle(self._point(cell), 3, LINE)
        current = self._current_call
        for call in range(min(current + 1, state["cells"].shape[1])):
            start, end = (self._point(int(cell)) for cell in state["cells"][0, call])
            made = state["offers"][0, call] != self.env.population.offers.no_change
            answered = GREEN if state["accepted"][0, call] else RED
            colour = BLUE if call == current else answered if made else SOFT
            canvas.line(start, end, colour, 3 if call == current else 1.5)
            canvas.circle(end, 4, colour)
        depot = self._point(city.depot_cell)
        canvas.box((depot[0] - 6, depot[1] - 6), (12, 12), INK, INK)
        for place, line in enumerate(self._lines()):
            canvas.text((self.map_pixels + 44, 26 + 26 * place), line, 17 if place == 0 else 14)
        legend = (("this call", BLUE), ("offer accepted", GREEN), ("offer refused", RED), ("no offer", SOFT))
        for place, (name, colour) in enumerate(legend):
            top = self.height - 118 + 24 * place
            canvas.circle((self.map_pixels + 50, top + 8), 5, colour)
            canvas.text((self.map_pixels + 64, top), name, 13, SOFT)
        return canvas.array()

    @property
    def _current_call(self) -> int:
        return int(self.env.true_state["num_booked"][0])

    def _point(self, cell: int) -> Point:
        """Position of a cell on the map, in pixels."""
        positions = self.env.population.city.positions
        low, span = np.nanmin(positions, axis=0), np.ptp(positions[~np.isnan(positions).any(axis=1)], axis=0)
        share = np.nan_to_num((positions[cell] - low) / np.where(span > 0, span, 1.0), nan=0.5)
        inner = self.map_pixels - 40
        return 40 + float(share[1]) * inner, 20 + self.map_pixels - 20 - float(share[0]) * inner

    def _lines(self) -> list[str]:
        env, state = self.env, self.env.true_state
        number, calls = self._current_call, env.settings.num_customers
        cost, baseline = float(state["cost"][0]), float(state["baseline_cost"][0, number])
        saved = float(improvement_pct(np.array([baseline]), np.array([cost]))[0])
        made = state["offers"][0, :number] != self.env.population.offers.no_change
        accepted = int((made & state["accepted"][0, :number]).sum())
        lines = [
            f"call {min(number + 1, calls)} of {calls}",
            f"driving {cost:.0f} min; as requested {baseline:.0f} min ({saved:+.1f} % saved)",
            f"offers accepted: {accepted} of {int(made.sum())}",
        ]
        if number > 0:
            lines.append(f"last answer: {self._answer(number - 1)}")
        if number < calls:
            trip, names = int(state["trip_id"][0, number]), env.population.city.names
            windows, cells = state["requested_windows"][0, number], state["cells"][0, number]
            lines += [
                "",
                f"customer {int(state['customer_id'][0, number])}: {PURPOSE_NAMES[env.population.trips.purpose[trip]]}",
                f"pickup {' to '.join(map(format_clock, windows[PICKUP]))} at {names[cells[0]]}",
                f"dropoff {' to '.join(map(format_clock, windows[DROPOFF]))} at {names[cells[1]]}",
            ]
        return lines

    def _answer(self, call: int) -> str:
        state = self.env.true_state
        offer = int(state["offers"][0, call])
        offers = self.env.population.offers
        if offer == offers.no_change:
            return "no offer was made"
        answer = "accepted" if state["accepted"][0, call] else "refused"
        return f"{offers.names[offer]}: {answer}"
