"""One cage2 env with scripted actions, for tests of single rules."""

import numpy as np

from hundredfold.envs.cage2 import red_actions
from hundredfold.envs.cage2.conformance import RECORDINGS
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.network import NONE
from hundredfold.envs.cage2.network_file import STANDARD
from hundredfold.envs.cage2.network_tables import STANDARD_TABLES

# Numbers of the standard network.
ENTERPRISE, OPERATIONAL, USER = range(3)
DEFENDER, ENTERPRISE0, ENTERPRISE1, ENTERPRISE2 = range(4)
OP_HOST0, OP_HOST1, OP_HOST2, OP_SERVER0 = range(4, 8)
USER0, USER1, USER2, USER3, USER4 = range(8, 13)
HOSTS = STANDARD.host_names
NUM_HOSTS = 13
NUM_ACTIONS = 145
NUM_BITS = 52
DECOY_FIRST, RESTORE_FIRST = 28, 132
INSTALLABLE_DECOYS = STANDARD_TABLES.installable_decoys
EXPLOIT_OPTIONS = STANDARD_TABLES.exploit_options
DISTINCT_PORTS = STANDARD_TABLES.distinct_ports
DEFENDABLE = STANDARD_TABLES.defendable

TRACES = [
    RECORDINGS / name for name in ("traces.npz", "traces_leaderboard.npz", "traces_cardiff.npz", "traces_raw.npz")
]

SLEEP, MONITOR = 0, 1
ACTIVITIES = {(0, 0): "None", (1, 0): "Scan", (1, 1): "Exploit"}
COMPROMISED = {(0, 0): "No", (1, 0): "Unknown", (0, 1): "User", (1, 1): "Privileged"}


def analyse(host):
    return 2 + host


def remove(host):
    return 15 + host


def decoy(kind, host):
    return 28 + 13 * kind + host


def restore(host):
    return 132 + host


class Game:
    """One env in which blue and red sleep except where a test gives them an action.

    Every action returns the game, so that calls can be chained.
    """

    def __init__(self, **settings):
        settings = {"red": "sleep", "horizons": (1000,)} | settings
        self.env = Cage2(np.arange(1), Cage2Settings(**settings))
        self.env.reset(seed=0)

    def step(self, blue=SLEEP, red=(red_actions.SLEEP, NONE), **draws):
        """Step with a forced red action; without recorded draws the RNG stream is used."""
        recorded = {name: np.array([value]) for name, value in draws.items()} or None
        self.env.step_with_draws(np.array([blue]), recorded, force_red=red)
        return self

    def discover(self, subnet, blue=SLEEP):
        return self.step(blue, (red_actions.DISCOVER, subnet))

    def scan(self, host, blue=SLEEP, **draws):
        return self.step(blue, (red_actions.SCAN, host), **draws)

    def exploit(self, host, exploit=255, detected=1, blue=SLEEP, **draws):
        red = (red_actions.EXPLOIT, host)
        return self.step(blue, red, exploit=exploit, exploit_detected=detected, **draws)

    def break_in(self, host, exploit=255, detected=1):
        """Scan, then exploit."""
        return self.scan(host).exploit(host, exploit, detected)

    def escalate(self, host, blue=SLEEP, choice=0):
        return self.step(blue, (red_actions.ESCALATE, host), escalate_choice=choice)

    def impact(self, blue=SLEEP):
        return self.step(blue, (red_actions.IMPACT, OP_SERVER0))

    def __getitem__(self, name):
        """Array of the true state or of the info."""
        out = self.env.out
        return (out.true_state | out.info)[name][0]

    @property
    def reward(self):
        return float(self.env.out.reward[0])

    @property
    def bits(self):
        return self.env.out.observation["bits"][0].reshape(NUM_HOSTS, 4)

    def activity(self, host):
        return ACTIVITIES[tuple(self.bits[host, :2].tolist())]

    def compromised(self, host):
        return COMPROMISED[tuple(self.bits[host, 2:].tolist())]

    @property
    def is_quiet(self):
        return not self.bits[:, :2].any()
