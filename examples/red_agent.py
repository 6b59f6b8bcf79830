"""A red agent of cage2 by hand.

In this folder:
    hundredfold evaluate cage2 --policy shipped --red red_agent:Wanderer --episodes 100
    hundredfold train cage2 --red red_agent:Wanderer
"""

from __future__ import annotations

import numpy as np

from hundredfold.core.batch import Arrays, IntArray
from hundredfold.envs.cage2.network import Network
from hundredfold.envs.cage2.own_red import RedView
from hundredfold.envs.cage2.red_actions import DISCOVER, ESCALATE, IMPACT, SCAN


class Wanderer:
    """Draws a host that it knows and scans, exploits and escalates it; gives up where that fails.

    An object plays all envs of a batch at once: arrays have one row per env.
    """

    def __init__(self, num_envs: int, network: Network) -> None:
        self.network = network
        self.action = np.zeros(num_envs, np.int64)  # the last one; their numbers follow each other
        self.host = np.zeros(num_envs, np.int64)
        self.discovered = np.zeros((num_envs, len(network.subnets)), bool)

    def reset(self, rows: IntArray) -> None:
        self.action[rows], self.discovered[rows] = 0, False

    def state(self) -> Arrays:
        return {"action": self.action, "host": self.host, "discovered": self.discovered}

    def act(self, view: RedView) -> tuple[IntArray, IntArray]:
        goes_on = (view.success == 1) & (self.action >= SCAN)
        goes_on &= (self.action < ESCALATE) | (self.host == self.network.server)
        new_subnets = view.subnets & ~self.discovered
        subnet = new_subnets.argmax(axis=1)
        discovers = ~goes_on & new_subnets.any(axis=1)
        self.discovered[discovers, subnet[discovers]] = True
        others = view.known.copy()
        others[:, self.network.entry] = False  # red is there already
        self.host[:] = np.where(goes_on | discovers, self.host, view.pick(others))
        self.action[:] = np.where(goes_on, np.minimum(self.action + 1, IMPACT), np.where(discovers, DISCOVER, SCAN))
        return self.action, np.where(discovers, subnet, self.host)
