"""Network of CAGE Challenge 2: hosts, ports, decoys and exploits.

Plain tables and, derived from them, look-up tables for the kernels. Hosts, decoys and exploits are
numbered by their index in `HOSTS`, `DECOYS` and `EXPLOITS`; a set of them is a bit mask.
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
"""Bits of the observation: four per host."""
NONE: Final = 255
"""No host, subnet, decoy or exploit."""

SUBNET_OF: Final = np.array([ENTERPRISE] * 4 + [OPERATIONAL] * 4 + [USER] * 5)
FIRST_HOST: Final = np.array([DEFENDER, OP_HOST0, USER0, NUM_HOSTS])
"""The hosts of subnet s are FIRST_HOST[s] .. FIRST_HOST[s + 1] - 1."""

# Cost in tenths of a point of each step with a privileged red session on the host.
CONFIDENTIALITY_TENTHS: Final = np.array([1, 10, 10, 10, 1, 1, 1, 10, 0, 1, 1, 1, 1])

# The host whose address red learns by a successful privilege escalation.
LINKED_HOST: Final = np.full(NUM_HOSTS, NONE)
LINKED_HOST[[USER1, USER2]] = ENTERPRISE1
LINKED_HOST[[USER3, USER4]] = ENTERPRISE0
LINKED_HOST[ENTERPRISE2] = OP_SERVER0

WINDOWS: Final = frozenset({ENTERPRISE1, ENTERPRISE2, USER0, USER1, USER2})

# Open ports in the order of a scan; Defender listens on 53 twice.
WINDOWS_SERVER_PORTS: Final = (22, 135, 3389, 445, 139, 80, 443)
BASE_PORTS: Final = (
    (22, 53, 53, 68),  # Defender
    (22,),  # Enterprise0
    WINDOWS_SERVER_PORTS,  # Enterprise1
    WINDOWS_SERVER_PORTS,  # Enterprise2
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
"""Network events of a scan without decoys: one per open port, duplicates included."""

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
GENUINE_SERVICE: Final = np.full((NUM_EXPLOITS, NUM_HOSTS), ABSENT)
GENUINE_SERVICE[ETERNAL_BLUE, USER2] = GIVES_ROOT
GENUINE_SERVICE[BLUE_KEEP, USER2] = GIVES_USER
GENUINE_SERVICE[BLUE_KEEP, [ENTERPRISE1, ENTERPRISE2]] = GIVES_ROOT
GENUINE_SERVICE[HTTP_RFI, [ENTERPRISE1, ENTERPRISE2, USER3, USER4]] = GIVES_USER
GENUINE_SERVICE[HTTPS_RFI, [ENTERPRISE1, ENTERPRISE2, USER3, USER4]] = GIVES_USER
GENUINE_SERVICE[SSH_BRUTE_FORCE, ENTERPRISE0 : USER1 + 1] = GIVES_USER
GENUINE_SERVICE[SSH_BRUTE_FORCE, USER4] = GIVES_USER
GENUINE_SERVICE[SSH_BRUTE_FORCE, DEFENDER] = ALWAYS_FAILS
GENUINE_SERVICE[SQL_INJECTION, USER4] = GIVES_ROOT
GENUINE_SERVICE[HARAKA_RCE, [USER3, USER4]] = GIVES_ROOT
GENUINE_SERVICE[FTP_TRAVERSAL, [USER0, USER1]] = GIVES_ROOT


def open_ports(host: int, decoys: int) -> list[int]:
    """Open ports of `host` in scan order, with one copy of each decoy in the mask."""
    on_host = [d for d in range(NUM_DECOYS) if decoys >> d & 1]
    return [*BASE_PORTS[host], *(DECOY_PORT[d] for d in on_host)]


def installable_decoys(host: int, decoys: int) -> int:
    """Mask of the decoys that can be installed on a host with these decoys."""
    ports = open_ports(host, decoys)
    wrong_os = DECOY_LINUX_ONLY if host in WINDOWS else DECOY_WINDOWS_ONLY
    return sum(1 << d for d in range(NUM_DECOYS) if d not in wrong_os and DECOY_REQUIRED_PORT[d] not in ports)


def exploit_options(host: int, decoys: int) -> int:
    """Mask of the exploits that a scan of the host suggests, genuine service or not."""
    ports = open_ports(host, decoys)
    has_web = 80 in ports or 443 in ports
    return sum(1 << e for e in range(NUM_EXPLOITS) if EXPLOIT_PORT[e] in ports and (e != SQL_INJECTION or has_web))


def _for_every_decoy_set(function: Callable[[int, int], int]) -> Array:
    """(hosts, 256) table of `function(host, decoys)` for every set of decoys."""
    return np.array(
        [[function(host, decoys) for decoys in range(1 << NUM_DECOYS)] for host in range(NUM_HOSTS)]
    ).astype(np.uint8)


INSTALLABLE_DECOYS: Final = _for_every_decoy_set(installable_decoys)
EXPLOIT_OPTIONS: Final = _for_every_decoy_set(exploit_options)
DISTINCT_PORTS: Final = _for_every_decoy_set(lambda host, decoys: len(set(open_ports(host, decoys))))

# (exploits,) mask of the decoys that trap each exploit.
TRAPPING_DECOYS: Final = np.array(
    [sum(1 << d for d in range(NUM_DECOYS) if DECOY_TRAPS[d] == e) for e in range(NUM_EXPLOITS)]
)
# (256,) exploit of the highest weight in each set of options.
TOP_EXPLOIT: Final = np.array(
    [
        max((e for e in range(NUM_EXPLOITS) if options >> e & 1), key=EXPLOIT_WEIGHT.__getitem__) if options else NONE
        for options in range(1 << NUM_EXPLOITS)
    ]
)
