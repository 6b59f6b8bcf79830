"""Pictures of cage2: every host with red's access, blue's decoys and what blue observes."""

from __future__ import annotations

from typing import Any, ClassVar

from hundredfold.core.batch import Array
from hundredfold.envs.cage2.blue_actions import action_names
from hundredfold.envs.cage2.env import Cage2
from hundredfold.envs.cage2.legend import (
    ACCESS,
    ACTIVITY,
    COMPROMISED,
    SUCCESS,
    decoy_names,
    host_bits,
    red_action_name,
)
from hundredfold.envs.cage2.state import NO_ACCESS, PRIVILEGED_ACCESS
from hundredfold.envs.rendering import CARD, GREEN, LINE, ORANGE, ORANGE_BACK, RED, RED_BACK, SOFT, Canvas, LastStep


class Cage2Rendering:
    """The network by subnet; the attack goes from left to right."""

    fps: ClassVar[int] = 4

    def __init__(self, env: Cage2) -> None:
        self.env, self.network = env, env.network
        self.action_names = action_names(env.network)
        self.columns = [(subnet, self.network.hosts_of(subnet)) for subnet in self.network.subnet_order]
        self.width = max(960, 40 + 306 * len(self.columns))
        self.height = 120 + 88 * max(len(hosts) for _, hosts in self.columns)

    def text(self, last: LastStep) -> str:
        lines = self._headlines(last)
        lines.append(f"{'host':<12} {'red access':<24} {'blue observes':<24} decoys")
        for host, name in enumerate(self.network.host_names):
            truth, seen, decoys, _ = self._host(host)
            lines.append(f"{name:<12} {truth:<24} {seen:<24} {decoys}".rstrip())
        return "\n".join(lines)

    def image(self, last: LastStep) -> Array:
        canvas = Canvas(self.width, self.height)
        for place, line in enumerate(self._headlines(last)):
            canvas.text((20, 14 + 22 * place), line, 16 if place == 0 else 14)
        column_width = (self.width - 40) / len(self.columns)
        for place, (subnet, hosts) in enumerate(self.columns):
            left, top = 20 + place * column_width, 92.0
            canvas.text((left + 4, top), self.network.subnets[subnet], 13, SOFT)
            for host in hosts:
                truth, seen, decoys, access = self._host(host)
                fill = (CARD, ORANGE_BACK, RED_BACK)[access]
                edge = (LINE, ORANGE, RED)[access]
                canvas.box((left, top + 22), (column_width - 12, 82), fill, edge, 1 if access == NO_ACCESS else 2)
                canvas.text((left + 10, top + 28), self.network.hosts[host].name, 15)
                canvas.text((left + 10, top + 48), truth, 13, (SOFT, ORANGE, RED)[access])
                canvas.text((left + 10, top + 65), f"blue observes: {seen}", 13, SOFT)
                canvas.text((left + 10, top + 83), decoys, 12, GREEN)
                top += 88
        return canvas.array()

    def _headlines(self, last: LastStep) -> list[str]:
        """Step and reward, blue's action, red's action."""
        out = self.env.out
        info: dict[str, Any] = {name: int(array[0]) for name, array in out.info.items()}
        step, horizon = (int(self.env.hidden[name][0]) for name in ("step", "horizon"))
        head = f"step {step} of {horizon}: {last.total_reward:.1f} points so far"
        if last.action is None:
            return [head, "blue: no action yet", "red: no action yet"]
        red = red_action_name(info["red_action"], info["red_target"], self.network)
        return [
            head,
            f"blue: {self.action_names[last.action]} (success: {SUCCESS[info['blue_success']]})",
            f"red: {red} (success: {SUCCESS[info['red_success']]})",
        ]

    def _host(self, host: int) -> tuple[str, str, str, int]:
        """Red's access, what blue observes, decoys; and the access as a code."""
        out = self.env.out
        truth = {name: int(out.true_state[name][0, host]) for name in ("access", "n_sessions", "decoys")}
        access = truth["access"]
        red = f"red: {ACCESS[access]}"
        if truth["n_sessions"] > 1:
            red += f", {truth['n_sessions']} sessions"
        if host == self.network.server and not out.true_state["ot_up"][0]:
            red, access = f"{red}, OT stopped", PRIVILEGED_ACCESS
        activity, extra, status, second = host_bits(out.observation["bits"][0])[host].tolist()
        parts = [name for name in (ACTIVITY[activity, extra],) if name != "none"]
        parts += [f"status {name}" for name in (COMPROMISED[status, second],) if name != "no"]
        seen = ", ".join(parts) or "nothing"
        return red, seen, " ".join(decoy_names(truth["decoys"])), access
