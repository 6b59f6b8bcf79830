"""Red agents of cage2 in Python: those of the kernels once more, and broken ones."""

import numpy as np

from hundredfold.envs.cage2.network import NONE
from hundredfold.envs.cage2.red_actions import DISCOVER, ESCALATE, EXPLOIT, IMPACT, SCAN, SLEEP
from hundredfold.envs.cage2.state import FALSE, TRUE

SCRIPT = [DISCOVER, *[SCAN, EXPLOIT, ESCALATE] * 2, DISCOVER, *[SCAN, EXPLOIT, ESCALATE] * 2, IMPACT]
AFTER_FAILURE = [0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13]


class BLine:
    """`b_line`, an env after the other."""

    def __init__(self, num_envs, network):
        self.network = network
        self.position = np.zeros(num_envs, np.int64)
        self.first = np.full(num_envs, NONE)
        self.reached_server = np.zeros(num_envs, bool)

    def reset(self, rows):
        self.position[rows], self.first[rows], self.reached_server[rows] = 0, NONE, False

    def state(self):
        return {"position": self.position, "first": self.first, "reached_server": self.reached_server}

    def act(self, view):
        candidates = np.isin(np.arange(self.network.num_hosts), self.network.first_targets)
        drawn = view.pick(np.tile(candidates, (view.num_envs, 1)))
        success, empty_scan = view.success, view.empty_scan
        targets = np.zeros(view.num_envs, np.int64)
        for row in range(view.num_envs):
            before = self.position[row]
            position = min(before + 1, 14) if success[row] == TRUE else AFTER_FAILURE[before]
            if position == 12:
                if empty_scan[row] and not self.reached_server[row]:
                    position = 1
                else:
                    self.reached_server[row] = True
            if position == 1 and self.first[row] == NONE:
                self.first[row] = drawn[row]
            self.position[row] = position
            targets[row] = self.target(row)
        return np.array(SCRIPT)[self.position], targets

    def target(self, row):
        hosts, position = self.network.hosts, self.position[row]
        if position == 0:
            return hosts[self.network.entry].subnet
        if position <= 3:
            return self.first[row]
        if position <= 6:
            return hosts[self.first[row]].reveals
        if position == 7:
            return hosts[self.network.relay].subnet
        return self.network.relay if position <= 10 else self.network.server


class Meander:
    """`meander`, an env after the other."""

    SETS = ("scanned", "exploited", "escalated", "ever_exploited")

    def __init__(self, num_envs, network):
        self.network = network
        self.sets = {name: np.zeros((num_envs, network.num_hosts), bool) for name in self.SETS}
        self.subnets = np.zeros((num_envs, len(network.subnets)), bool)
        self.last = {name: np.full(num_envs, NONE) for name in ("last_exploited", "last_escalated")}

    def reset(self, rows):
        for array in (*self.sets.values(), self.subnets):
            array[rows] = False
        for array in self.last.values():
            array[rows] = NONE

    def state(self):
        return {**self.sets, "subnets": self.subnets, **self.last}

    def act(self, view):
        known, subnets, success = view.known, view.subnets, view.success
        chosen = [self.choose(row, known[row], subnets[row], success[row]) for row in range(view.num_envs)]
        drawn = view.pick(np.array([candidates for _, candidates, _ in chosen]))
        actions = np.array([action for action, _, _ in chosen])
        targets = np.array(
            [draw if target is None else target for (_, _, target), draw in zip(chosen, drawn, strict=True)]
        )
        for row, (action, host) in enumerate(zip(actions, targets, strict=True)):
            if action == SCAN:
                self.sets["scanned"][row, host] = True
            elif action == ESCALATE:
                self.sets["escalated"][row, host] = True
                self.last["last_escalated"][row] = host
            elif action == EXPLOIT:
                self.sets["exploited"][row, host] = True
                self.last["last_exploited"][row] = host
        return actions, targets

    def choose(self, row, known, subnets, success):
        """Action, candidates for its target, and the target if there is nothing to draw."""
        self.remember(row, success)
        scanned, exploited, escalated, ever = (self.sets[name][row] for name in self.SETS)
        nothing, network = np.zeros_like(known), self.network
        if escalated[network.server]:
            self.last["last_escalated"][row] = network.server
            return IMPACT, nothing, network.server
        untried = subnets & ~self.subnets[row]
        if untried.any():
            subnet = int(untried.argmax())
            self.subnets[row, subnet] = True
            return DISCOVER, nothing, subnet
        if (known & ~scanned).any():
            return SCAN, known & ~scanned, None
        held = ever | (np.arange(len(known)) == network.entry)
        held &= (~ever | exploited) & ~escalated
        if held.any():
            return ESCALATE, held, None
        if (known & ~exploited).any():
            return EXPLOIT, known & ~exploited, None
        return SLEEP, nothing, NONE

    def remember(self, row, success):
        _, exploited, escalated, ever = (self.sets[name][row] for name in self.SETS)
        host, self.last["last_exploited"][row] = self.last["last_exploited"][row], NONE
        if host != NONE and success == TRUE:
            ever[host] = True
        elif host != NONE:
            exploited[host] = False
            server_subnet = self.network.hosts[self.network.server].subnet
            for group in (self.network.hosts_of(server_subnet), self.network.opened_by[server_subnet]):
                again = [other for other in group if escalated[other]]
                escalated[again] = False
                exploited[again] = False
                if again:
                    break
        host, self.last["last_escalated"][row] = self.last["last_escalated"][row], NONE
        if host != NONE and success == FALSE:
            escalated[host] = False
            if ever[host]:
                exploited[host] = False


class Cheat(BLine):
    """Attacks a host that it does not know."""

    def act(self, view):
        return np.full(view.num_envs, EXPLOIT), np.full(view.num_envs, self.network.server)


class OneArray(BLine):
    """Returns no targets."""

    def act(self, view):
        return np.zeros(view.num_envs, int)


class WrongAction(BLine):
    """Returns an action that red does not have."""

    def act(self, view):
        return 9, 0


class WrongMemory(BLine):
    """Has a memory that is not one row per env."""

    def state(self):
        return {"first": self.first[:-1]}


class WithoutState:
    """Lacks a method."""

    def __init__(self, num_envs, network):
        pass

    def reset(self, rows):
        pass

    def act(self, view):
        return SLEEP, NONE


class WithoutArguments(WithoutState):
    """Cannot be made."""

    def __init__(self):
        pass


class Recorder(WithoutState):
    """Sleeps and records its draws."""

    draws = []  # noqa: RUF012 - shared on purpose

    def state(self):
        return {}

    def act(self, view):
        self.draws.append([view.uniforms(), view.uniforms(1), view.uniforms(2), view.step, view.action, view.target])
        return SLEEP, NONE
