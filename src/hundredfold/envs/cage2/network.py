"""Networks of cage2: hosts, subnets, ports, and the exploits and decoys that all networks have in common.

Hosts, subnets, decoys and exploits are numbered by their place in a network, `DECOYS` and `EXPLOITS`; a set of
them is a bit mask. `network_file` reads networks from TOML files, `network_tables` makes the kernels' tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NONE: Final = 255
"""No host, subnet, decoy or exploit."""
MAX_HOSTS: Final = 60
"""Most hosts of a network: a set of them is a mask in a signed 64-bit integer."""
MAX_SUBNETS: Final = 8

EXPLOITS: Final = (
    "EternalBlue",
    "BlueKeep",
    "HTTPRFI",
    "HTTPSRFI",
    "SSHBruteForce",
    "SQLInjection",
    "HarakaRCE",
    "FTPDirectoryTraversal",
)
ETERNAL_BLUE, BLUE_KEEP, HTTP_RFI, HTTPS_RFI = range(4)
SSH_BRUTE_FORCE, SQL_INJECTION, HARAKA_RCE, FTP_TRAVERSAL = range(4, 8)
NUM_EXPLOITS: Final = len(EXPLOITS)
EXPLOIT_PORT: Final = (139, 3389, 80, 443, 22, 3390, 25, 21)
WEB_PORTS: Final = (80, 443)
"""SQLInjection also needs one of these."""
SSH_ATTEMPTS: Final = 10
"""Connections of a failed brute force; a successful one has one more."""
EXPLOIT_WEIGHT: Final = (2.0, 1.0, 3.0, 4.0, 0.1, 5.0, 6.0, 7.0)

DECOYS: Final = ("Apache", "Femitter", "HarakaSMPT", "Smss", "SSHD", "Svchost", "Tomcat", "Vsftpd")
APACHE, FEMITTER, HARAKA_SMPT, SMSS, SSHD, SVCHOST, TOMCAT, VSFTPD = range(8)
NUM_DECOYS: Final = len(DECOYS)
# Vsftpd opens 80 but requires 21 to be free: a slip in CybORG that is part of the game.
DECOY_PORT: Final = (80, 21, 25, 139, 22, 3389, 443, 80)
DECOY_REQUIRED_PORT: Final = (80, 21, 25, 139, 22, 3389, 443, 21)
DECOY_WINDOWS_ONLY: Final = frozenset({FEMITTER, SMSS, SVCHOST})
DECOY_LINUX_ONLY: Final = frozenset({HARAKA_SMPT, VSFTPD})
DECOY_TRAPS: Final = (
    HTTP_RFI,
    FTP_TRAVERSAL,
    HARAKA_RCE,
    ETERNAL_BLUE,
    SSH_BRUTE_FORCE,
    BLUE_KEEP,
    HTTPS_RFI,
    HTTP_RFI,
)

# The genuine (non-decoy) service that an exploit finds on a host, and the access it gives.
ABSENT, GIVES_USER, GIVES_ROOT, ALWAYS_FAILS = range(4)


@dataclass(frozen=True, slots=True)
class Host:
    """A host of a network."""

    name: str
    subnet: int
    windows: bool
    cost_tenths: int  # cost in tenths of a point of each step with a privileged red session
    ports: tuple[int, ...]  # open ports in the order of a scan; a port may be listed twice
    services: tuple[int, ...]  # (exploits,) ABSENT, GIVES_USER, GIVES_ROOT or ALWAYS_FAILS
    reveals: int  # the host whose address red learns by a successful privilege escalation, or NONE

    @property
    def can_be_entered(self) -> bool:
        """Whether any exploit gives red a session."""
        return GIVES_USER in self.services or GIVES_ROOT in self.services

    def open_ports(self, decoys: int) -> list[int]:
        """Open ports in scan order, with one copy of each decoy in the mask."""
        return [*self.ports, *(DECOY_PORT[d] for d in range(NUM_DECOYS) if decoys >> d & 1)]

    def installable_decoys(self, decoys: int) -> int:
        """Mask of the decoys that can be installed beside these."""
        ports = self.open_ports(decoys)
        wrong_os = DECOY_LINUX_ONLY if self.windows else DECOY_WINDOWS_ONLY
        return sum(1 << d for d in range(NUM_DECOYS) if d not in wrong_os and DECOY_REQUIRED_PORT[d] not in ports)

    def exploit_options(self, decoys: int) -> int:
        """Mask of the exploits that a scan suggests, genuine service or not."""
        ports = self.open_ports(decoys)
        has_web = any(port in ports for port in WEB_PORTS)
        return sum(1 << e for e in range(NUM_EXPLOITS) if EXPLOIT_PORT[e] in ports and (e != SQL_INJECTION or has_web))

    def next_decoy(self, decoys: int) -> int:
        """The decoy to place next beside these, or NONE if none would trap anything.

        Of those that can be installed and whose exploit finds neither a genuine service nor another decoy, the one
        whose exploit has the highest weight.
        """
        trapped = {DECOY_TRAPS[d] for d in range(NUM_DECOYS) if decoys >> d & 1}
        installable = self.installable_decoys(decoys)
        useful = [
            d
            for d in range(NUM_DECOYS)
            if installable >> d & 1 and DECOY_TRAPS[d] not in trapped and self.services[DECOY_TRAPS[d]] == ABSENT
        ]
        return max(useful, key=lambda d: EXPLOIT_WEIGHT[DECOY_TRAPS[d]], default=NONE)


@dataclass(frozen=True, slots=True)
class Network:
    """Hosts and subnets, and the parts that some hosts play."""

    subnets: tuple[str, ...]
    opened_by: tuple[tuple[int, ...], ...]  # per subnet: red reaches it while it holds one of these; none: always
    hosts: tuple[Host, ...]  # in the order of their subnets
    entry: int  # the host on which red has a session from the start, which it never loses
    server: int  # the host of the OT service, red's goal
    first_targets: tuple[int, ...]  # b_line draws its first target from these
    relay: int  # the host that b_line takes before the server
    green_hosts: tuple[int, ...]  # hosts that green scans

    @property
    def num_hosts(self) -> int:
        return len(self.hosts)

    @property
    def num_bits(self) -> int:
        """Bits of the observation: four per host."""
        return 4 * len(self.hosts)

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    @property
    def subnet_order(self) -> tuple[int, ...]:
        """Subnets in the direction of the attack: of the entry host, the relay and the server, then the others."""
        path = (self.hosts[host].subnet for host in (self.entry, self.relay, self.server))
        return tuple(dict.fromkeys((*path, *range(len(self.subnets)))))

    @property
    def hosts_by_value(self) -> tuple[int, ...]:
        """Hosts that blue may have to repair, most urgent first: all but the entry host, which red never loses.

        The way of b_line backwards, then the others by number, then those that red cannot enter.
        """
        linked = dict.fromkeys(self.hosts[first].reveals for first in self.first_targets)
        others = sorted(range(self.num_hosts), key=lambda host: (not self.hosts[host].can_be_entered, host))
        urgent = dict.fromkeys((self.server, self.relay, *linked, *others))
        return tuple(host for host in urgent if host != self.entry)

    def hosts_of(self, subnet: int) -> range:
        """Numbers of the hosts of a subnet."""
        members = [number for number, host in enumerate(self.hosts) if host.subnet == subnet]
        return range(members[0], members[-1] + 1)
