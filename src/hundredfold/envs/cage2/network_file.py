"""Networks from TOML files: read and checked here. `network.toml` of the package is the standard network.

Errors name the file, the host or subnet, what stands there and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.toml_files import read_toml
from hundredfold.envs.cage2.network import (
    ABSENT,
    ALWAYS_FAILS,
    EXPLOIT_PORT,
    EXPLOITS,
    GIVES_ROOT,
    GIVES_USER,
    MAX_HOSTS,
    MAX_SUBNETS,
    NONE,
    SQL_INJECTION,
    SSH_BRUTE_FORCE,
    WEB_PORTS,
    Host,
    Network,
)

STANDARD_FILE: Final = Path(__file__).with_name("network.toml")

KEYS: Final = {"entry": True, "server": True, "green": False, "b_line": True, "subnets": True, "hosts": True}
"""Keys of a file, and whether they are required."""
SUBNET_KEYS: Final = {"name": True, "opened_by": False}
HOST_KEYS: Final = {
    **{"name": True, "subnet": True, "system": True, "cost": True, "ports": True},
    **{"exploits": False, "reveals": False},
}
B_LINE_KEYS: Final = {"first": True, "relay": True}
ACCESS: Final = {"user": GIVES_USER, "root": GIVES_ROOT, "fails": ALWAYS_FAILS}
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}")
MAX_PORTS: Final = 32
MAX_COST: Final = 1000.0

Table = Mapping[str, Any]


def load_network(path: str | Path) -> Network:
    """Read and check a network file."""
    path = Path(path).expanduser()
    try:
        return _network(read_toml(path, "network file"))
    except NetworkError as error:
        raise SettingsError(f"{path}: {error}") from error


def network_of(network_file: str | None) -> Network:
    """The network of a file, or the standard network; a file is read again when it has changed.

    Args:
        network_file: path of the file; None for the standard network.
    """
    if network_file is None:
        return STANDARD
    try:
        modified = Path(network_file).expanduser().stat().st_mtime_ns
    except OSError:
        modified = 0  # the reader reports what is wrong
    return _cached_network(network_file, modified)


@lru_cache(maxsize=16)
def _cached_network(network_file: str, modified: int) -> Network:
    # `modified` is only part of the cache key.
    return load_network(network_file)


class NetworkError(ValueError):
    """What is wrong in a network file; the reader adds its path."""


def _network(table: Table) -> Network:
    _check_keys("the file", table, KEYS)
    subnet_tables = _tables(table, "subnets", MAX_SUBNETS)
    host_tables = _tables(table, "hosts", MAX_HOSTS)
    subnets = _names("subnets", subnet_tables, SUBNET_KEYS)
    names = _names("hosts", host_tables, HOST_KEYS)
    hosts = tuple(_host(entry, subnets, names) for entry in host_tables)
    b_line = table["b_line"]
    if not isinstance(b_line, dict):
        raise NetworkError(f"b_line must be a table with first and relay, got {b_line!r}.")
    _check_keys("b_line", b_line, B_LINE_KEYS)
    network = Network(
        subnets=subnets,
        opened_by=tuple(
            _number_list(entry.get("opened_by", []), names, f"opened_by of subnet {entry['name']}")
            for entry in subnet_tables
        ),
        hosts=hosts,
        entry=_number(table["entry"], names, "entry"),
        server=_number(table["server"], names, "server"),
        first_targets=tuple(sorted(_number_list(b_line["first"], names, "b_line.first"))),
        relay=_number(b_line["relay"], names, "b_line.relay"),
        green_hosts=_number_list(table.get("green", list(names)), names, "green"),
    )
    _check_subnets(network)
    _check_roles(network)
    return network


def _host(entry: Table, subnets: Sequence[str], names: Sequence[str]) -> Host:
    where = f"host {entry['name']}"
    system, cost, ports = entry["system"], entry["cost"], entry["ports"]
    if system not in ("Linux", "Windows"):
        raise NetworkError(f"system of {where} must be Linux or Windows, got {system!r}.")
    if type(cost) not in (int, float) or not 0 <= cost <= MAX_COST or abs(10 * cost - round(10 * cost)) > 1e-9:
        raise NetworkError(
            f"cost of {where} must be a number of points from 0 to {MAX_COST:g} with at most one decimal, got {cost!r}."
        )
    if not isinstance(ports, list) or not 1 <= len(ports) <= MAX_PORTS or not all(map(_is_port, ports)):
        raise NetworkError(
            f"ports of {where} must be a list of 1 to {MAX_PORTS} port numbers from 1 to 65535, got {ports!r}."
        )
    return Host(
        name=entry["name"],
        subnet=_number(entry["subnet"], subnets, f"subnet of {where}"),
        windows=system == "Windows",
        cost_tenths=round(10 * cost),
        ports=tuple(ports),
        services=_services(entry.get("exploits", {}), ports, where),
        reveals=_number(entry["reveals"], names, f"reveals of {where}") if "reveals" in entry else NONE,
    )


def _services(exploits: Any, ports: Sequence[int], where: str) -> tuple[int, ...]:
    """The access that each exploit gives."""
    services = [ABSENT] * len(EXPLOITS)
    if not isinstance(exploits, dict):
        raise NetworkError(f"exploits of {where} must be a table such as {{ BlueKeep = 'root' }}, got {exploits!r}.")
    for name, access in exploits.items():
        exploit = _number(name, EXPLOITS, f"exploits of {where}")
        allowed = ("user", "fails") if exploit == SSH_BRUTE_FORCE else ("user", "root")
        if access not in allowed:
            raise NetworkError(f"{name} of {where} must give {' or '.join(allowed)}, got {access!r}.")
        if EXPLOIT_PORT[exploit] not in ports:
            raise NetworkError(f"{name} of {where} needs port {EXPLOIT_PORT[exploit]}, which is not in {list(ports)}.")
        if exploit == SQL_INJECTION and not any(port in ports for port in WEB_PORTS):
            raise NetworkError(f"{name} of {where} needs port 80 or 443 as well, got {list(ports)}.")
        services[exploit] = ACCESS[access]
    return tuple(services)


def _check_subnets(network: Network) -> None:
    places = [host.subnet for host in network.hosts]
    for number, name in enumerate(network.subnets):
        if number not in places:
            raise NetworkError(f"subnet {name} has no host.")
        openers = network.opened_by[number]
        if openers and all(network.hosts[host].subnet == number for host in openers):
            raise NetworkError(f"subnet {name} can never be reached: it is opened by its own hosts only.")
    for host, place, last in zip(network.hosts[1:], places[1:], places, strict=False):
        if place < last:
            raise NetworkError(
                f"host {host.name} is out of order: list the hosts of a subnet together, in the order of the subnets "
                f"({', '.join(network.subnets)})."
            )


def _check_roles(network: Network) -> None:
    hosts, entry, relay = network.hosts, network.entry, network.relay
    if entry == network.server:
        raise NetworkError(f"{hosts[entry].name} cannot be both entry and server.")
    home = hosts[entry].subnet
    if network.opened_by[home]:
        raise NetworkError(f"subnet {network.subnets[home]} has the entry host, so it is open: remove opened_by.")
    if not network.green_hosts:
        raise NetworkError("green must name at least one host; omit it for all hosts.")
    if not network.first_targets:
        raise NetworkError("b_line.first must name at least one host.")
    for first in network.first_targets:
        host = hosts[first]
        if first == entry or host.subnet != home:
            raise NetworkError(
                f"b_line.first must name hosts of the entry host's subnet {network.subnets[home]}, other than the "
                f"entry host; got {host.name}."
            )
        if host.reveals == NONE or hosts[host.reveals].subnet != hosts[relay].subnet:
            raise NetworkError(
                f"b_line goes from {host.name} to the host that it reveals, which must be in the subnet of the relay "
                f"({network.subnets[hosts[relay].subnet]}); it reveals "
                f"{'no host' if host.reveals == NONE else hosts[host.reveals].name}."
            )
    if hosts[relay].reveals != network.server:
        raise NetworkError(f"the relay of b_line, {hosts[relay].name}, must reveal {hosts[network.server].name}.")
    openers = network.opened_by[hosts[network.server].subnet]
    if openers and relay not in openers:
        raise NetworkError(
            f"the relay of b_line, {hosts[relay].name}, must open the subnet of {hosts[network.server].name}, or "
            "b_line never gets there."
        )


def _check_keys(where: str, table: Table, known: Mapping[str, bool]) -> None:
    for key in table:
        if key not in known:
            raise NetworkError(f"{where} has an unknown key {key!r}; {suggest(key, known)}")
    missing = [key for key, required in known.items() if required and key not in table]
    if missing:
        raise NetworkError(f"{where} has no {', '.join(missing)}.")


def _tables(table: Table, key: str, most: int) -> list[dict[str, Any]]:
    found = table[key]
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise NetworkError(f"{key} must be a list of tables: write [[{key}]] before each.")
    if not 1 <= len(found) <= most:
        raise NetworkError(f"there must be 1 to {most} {key}, got {len(found)}.")
    return found


def _names(kind: str, tables: Sequence[Table], keys: Mapping[str, bool]) -> tuple[str, ...]:
    """Names of the subnets or hosts; checks the keys of each first."""
    names: list[str] = []
    for place, table in enumerate(tables, 1):
        name = table.get("name")
        _check_keys(f"number {place} of the {kind}" if name is None else f"{kind[:-1]} {name}", table, keys)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise NetworkError(f"names of {kind} are 1 to 40 letters, digits, '_', '.' and '-'; got {name!r}.")
        if name in names:
            raise NetworkError(f"two {kind} have the name {name}.")
        names.append(name)
    return tuple(names)


def _number(name: Any, names: Sequence[str], where: str) -> int:
    if name not in names:
        raise NetworkError(f"{where} is {name!r}; {suggest(str(name), names)}")
    return names.index(name)


def _number_list(found: Any, names: Sequence[str], where: str) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise NetworkError(f"{where} must be a list of host names, got {found!r}.")
    numbers = tuple(_number(name, names, where) for name in found)
    if len(set(numbers)) < len(numbers):
        raise NetworkError(f"{where} names a host twice: {found}.")
    return numbers


def _is_port(port: Any) -> bool:
    return type(port) is int and 1 <= port <= 65535


STANDARD: Final = load_network(STANDARD_FILE)
"""The network of CAGE Challenge 2."""
