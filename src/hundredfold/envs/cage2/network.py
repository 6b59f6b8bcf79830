"""The network of CAGE Challenge 2: its hosts, ports, decoys and exploits, and who fits whom.

Plain tables, written as a person would list them, and a few look-up tables made from them for the
rules in `blue_moves`, `red_moves` and `view`. Hosts, decoys and exploits are small numbers: their
place in `HOSTS`, `DECOYS` and `EXPLOITS`. A set of them is a bit mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from hundredfold.core.batch import Array

SUBNETS: Final = ("Enterprise", "Operational", "User")
ENTERPRISE, OPERATIONAL, USER = range(3)

HOSTS: Final = (
    "Defender",
    "Enterprise0",
    "Enterprise1",
    "Enterprise2",
    "Op_Host0",
    "Op_Host1",
    "Op_Host2",
    "Op_Server0",
    "User0",
    "User1",
    "User2",
    "User3",
    "User4",
)
DEFENDER, ENTERPRISE0, ENTERPRISE1, ENTERPRISE2 = range(4)
OP_HOST0, OP_HOST1, OP_HOST2, OP_SERVER0 = range(4, 8)
USER0, USER1, USER2, USER3, USER4 = range(8, 13)
NUM_HOSTS: Final = len(HOSTS)
NUM_BITS: Final = 4 * NUM_HOSTS
"""What blue sees of the network: four bits per host."""
NOBODY: Final = 255
"""Stands for "no host" and "no subnet" wherever one is named."""

SUBNET_OF: Final = np.array([ENTERPRISE] * 4 + [OPERATIONAL] * 4 + [USER] * 5)
FIRST_HOST: Final = np.array([DEFENDER, OP_HOST0, USER0, NUM_HOSTS])
"""The hosts of subnet s are FIRST_HOST[s] .. FIRST_HOST[s + 1] - 1."""

# What it costs blue, in tenths of a point, each step that red holds a privileged session there.
CONFIDENTIALITY_TENTHS: Final = np.array([1, 10, 10, 10, 1, 1, 1, 10, 0, 1, 1, 1, 1])

# Whose address red learns by exploring a host after a successful escalation.
LINK: Final = np.full(NUM_HOSTS, NOBODY)
LINK[[USER1, USER2]] = ENTERPRISE1
LINK[[USER3, USER4]] = ENTERPRISE0
LINK[ENTERPRISE2] = OP_SERVER0

WINDOWS: Final = frozenset({ENTERPRISE1, ENTERPRISE2, USER0, USER1, USER2})

# Open ports in the order in which a scan meets them; Defender listens on 53 twice.
OFFICE_PORTS: Final = (22, 135, 3389, 445, 139, 80, 443)
BASE_PORTS: Final = (
    (22, 53, 53, 68),  # Defender
    (22,),  # Enterprise0
    OFFICE_PORTS,  # Enterprise1
    OFFICE_PORTS,  # Enterprise2
    (22,),  # Op_Host0
    (22,),  # Op_Host1
    (22,),  # Op_Host2
    (22,),  # Op_Server0; its OT service has no port
    (22, 21),  # User0
    (22, 21),  # User1
    (445, 139, 135, 3389),  # User2
    (80, 3389, 443, 25),  # User3
    (22, 80, 3390, 443, 25),  # User4
)
BASE_EVENTS: Final = np.array([len(ports) for ports in BASE_PORTS])
"""Events that a scan of the untouched host leaves: one per open port, duplicates included."""

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
EXPLOIT_WEIGHT: Final = (2.0, 1.0, 3.0, 4.0, 0.1, 5.0, 6.0, 7.0)

DECOYS: Final = (
    "Apache",
    "Femitter",
    "HarakaSMPT",
    "Smss",
    "SSHD",
    "Svchost",
    "Tomcat",
    "Vsftpd",
)
APACHE, FEMITTER, HARAKA_SMPT, SMSS, SSHD, SVCHOST, TOMCAT, VSFTPD = range(8)
NUM_DECOYS: Final = len(DECOYS)
# Vsftpd opens 80 while it asks for 21: a slip of the original, and part of the game.
DECOY_OPENS: Final = (80, 21, 25, 139, 22, 3389, 443, 80)
DECOY_NEEDS_FREE: Final = (80, 21, 25, 139, 22, 3389, 443, 21)
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

# What an exploit finds on a host when it looks for a genuine process.
ABSENT, GIVES_USER, GIVES_ROOT, REFUSES = range(4)
GENUINE: Final = np.full((NUM_EXPLOITS, NUM_HOSTS), ABSENT)
GENUINE[ETERNAL_BLUE, USER2] = GIVES_ROOT
GENUINE[BLUE_KEEP, USER2] = GIVES_USER
GENUINE[BLUE_KEEP, [ENTERPRISE1, ENTERPRISE2]] = GIVES_ROOT
GENUINE[HTTP_RFI, [ENTERPRISE1, ENTERPRISE2, USER3, USER4]] = GIVES_USER
GENUINE[HTTPS_RFI, [ENTERPRISE1, ENTERPRISE2, USER3, USER4]] = GIVES_USER
GENUINE[SSH_BRUTE_FORCE, ENTERPRISE0 : USER1 + 1] = GIVES_USER
GENUINE[SSH_BRUTE_FORCE, USER4] = GIVES_USER
GENUINE[SSH_BRUTE_FORCE, DEFENDER] = REFUSES
GENUINE[SQL_INJECTION, USER4] = GIVES_ROOT
GENUINE[HARAKA_RCE, [USER3, USER4]] = GIVES_ROOT
GENUINE[FTP_TRAVERSAL, [USER0, USER1]] = GIVES_ROOT


def open_ports(host: int, decoys: int) -> list[int]:
    """Ports that a scan of `host` sees, in order, with one copy of each decoy in the mask."""
    on_host = [d for d in range(NUM_DECOYS) if decoys >> d & 1]
    return [*BASE_PORTS[host], *(DECOY_OPENS[d] for d in on_host)]


def fitting_decoys(host: int, decoys: int) -> int:
    """Mask of the decoys that can be installed next to the ones in the mask."""
    ports = open_ports(host, decoys)
    wrong_system = DECOY_LINUX_ONLY if host in WINDOWS else DECOY_WINDOWS_ONLY
    return sum(
        1 << d
        for d in range(NUM_DECOYS)
        if d not in wrong_system and DECOY_NEEDS_FREE[d] not in ports
    )


def exploit_options(host: int, decoys: int) -> int:
    """Mask of the exploits that look possible to somebody who has just scanned the host."""
    ports = open_ports(host, decoys)
    has_web = 80 in ports or 443 in ports
    return sum(
        1 << e
        for e in range(NUM_EXPLOITS)
        if EXPLOIT_PORT[e] in ports and (e != SQL_INJECTION or has_web)
    )


def _for_every_decoy_set(function: Callable[[int, int], int]) -> Array:
    """(hosts, 256) a table of `function(host, decoys)`, so that rules look up instead of search."""
    return np.array(
        [[function(host, decoys) for decoys in range(1 << NUM_DECOYS)] for host in range(NUM_HOSTS)]
    ).astype(np.uint8)


FITTING_DECOYS: Final = _for_every_decoy_set(fitting_decoys)
EXPLOIT_OPTIONS: Final = _for_every_decoy_set(exploit_options)
DISTINCT_PORTS: Final = _for_every_decoy_set(
    lambda host, decoys: len(set(open_ports(host, decoys)))
)

# (exploits,) mask of the decoys that trap each exploit.
TRAPPING_DECOYS: Final = np.array(
    [sum(1 << d for d in range(NUM_DECOYS) if DECOY_TRAPS[d] == e) for e in range(NUM_EXPLOITS)]
)
# (256,) the heaviest exploit of each set of options.
HEAVIEST_EXPLOIT: Final = np.array(
    [
        max((e for e in range(NUM_EXPLOITS) if options >> e & 1), key=EXPLOIT_WEIGHT.__getitem__)
        if options
        else NOBODY
        for options in range(1 << NUM_EXPLOITS)
    ]
)
