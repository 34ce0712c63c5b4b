"""Listeners and advertised listeners (KIP-103).

A listener has a name, an address to bind and an address to advertise. Clients connect to any broker, and then to the
advertised address of the partition's leader, on the listener with the same name. So clients must be able to reach an
advertised address: a listener on all interfaces needs one, and is refused without.

Brokers use the listener of inter.broker.listener.name among themselves, which clients may use as well. Without that
setting there is a separate inter-broker listener, on the host of the first one and a port that the system chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SUPPORTED_PROTOCOLS: Final = ("PLAINTEXT",)

REPLICATION: Final = "REPLICATION"
"""The name of the separate inter-broker listener."""

_ANY_ADDRESS: Final = ("", "0.0.0.0", "::")


class Listener(NamedTuple):
    """One listener. Ports are 0 until the system has chosen: see `bound`."""

    name: str
    host: str
    port: int
    protocol: str
    advertised_host: str
    advertised_port: int

    def bound(self, port: int) -> Listener:
        """The same listener after binding; an advertised port 0 becomes the bound one."""
        return self._replace(port=port, advertised_port=self.advertised_port or port)

    @property
    def beyond_loopback(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self.host)

    @property
    def address(self) -> str:
        return address_text(self.host, self.port)

    @property
    def advertised_address(self) -> str:
        return address_text(self.advertised_host, self.advertised_port)


class _Endpoint(NamedTuple):
    name: str
    host: str
    port: int


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdecimal())


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_listeners(
    listeners: Sequence[str],
    advertised: Sequence[str],
    protocol_map: Sequence[str],
    not_opened: Sequence[str] = (),
) -> tuple[tuple[Listener, ...], list[str]]:
    """The listeners to open, and problems. `not_opened`: the names of Kafka's controller listeners."""
    problems: list[str] = []
    bind = _parse_endpoints("listeners", listeners, not_opened, problems)
    advertised_at = {
        endpoint.name: endpoint
        for endpoint in _parse_endpoints("advertised.listeners", advertised, not_opened, problems)
    }
    protocols = _parse_protocol_map(protocol_map, problems)
    if not bind and not problems:
        problems.append("listeners: none to open: set listeners=PLAINTEXT://127.0.0.1:9092, or another address")
    _refuse_shared_ports(bind, problems)
    names = [endpoint.name for endpoint in bind]
    problems.extend(
        f"advertised.listeners: {name} is not among listeners, which are {', '.join(names) or 'none'}"
        for name in advertised_at
        if name not in names
    )
    opened = [_join(endpoint, advertised_at.get(endpoint.name), protocols, problems) for endpoint in bind]
    return tuple(opened), problems


def inter_broker_listener(listeners: Sequence[Listener], name: str | None) -> tuple[Listener | None, list[str]]:
    """The inter-broker listener, and problems: the named one, or a separate one."""
    names = [listener.name for listener in listeners]
    if name:
        found = next((listener for listener in listeners if listener.name == name.upper()), None)
        if found is None:
            return None, [f"inter.broker.listener.name: {name} is not among listeners, which are {', '.join(names)}"]
        return found, []
    if REPLICATION in names:
        problem = (
            f"listeners: {REPLICATION} is the name of the separate inter-broker listener: "
            f"set inter.broker.listener.name={REPLICATION}, or give it another name"
        )
        return None, [problem]
    first = listeners[0]
    return Listener(REPLICATION, first.host, 0, "SASL_PLAINTEXT", first.advertised_host, 0), []


def with_address(
    listeners: Sequence[str], not_opened: Sequence[str], host: str | None, port: int | None
) -> tuple[str, ...] | None:
    """`listeners` with the address of its only listener changed; None when it has several."""
    problems: list[str] = []
    bind = _parse_endpoints("listeners", listeners, not_opened, problems)
    if problems or len(bind) != 1:
        return None
    only = bind[0]
    changed = address_text(only.host if host is None else host.strip("[]"), only.port if port is None else port)
    return (f"{only.name}://{changed}",)


def _parse_endpoints(
    setting: str, texts: Sequence[str], not_opened: Sequence[str], problems: list[str]
) -> list[_Endpoint]:
    skipped = {name.upper() for name in not_opened}
    endpoints: list[_Endpoint] = []
    for text in texts:
        endpoint = _parse_endpoint(text)
        if endpoint is None:
            problems.append(f"{setting}: {text!r} is not NAME://host:port, for example PLAINTEXT://127.0.0.1:9092")
            continue
        if endpoint.name in skipped:
            continue
        if any(endpoint.name == other.name for other in endpoints):
            problems.append(f"{setting}: {endpoint.name} is there twice; each listener has a name of its own")
            continue
        endpoints.append(endpoint)
    return endpoints


def _parse_endpoint(text: str) -> _Endpoint | None:
    name, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        valid = ":" in host  # brackets are for IPv6 addresses, and those need them
    else:
        valid = ":" not in host
    valid = valid and name.replace("_", "").replace("-", "").replace(".", "").isalnum()
    valid = valid and not any(invalid in host for invalid in "[]/ \t")
    if not valid or not (port.isascii() and port.isdecimal()) or int(port[:6]) > 65535:
        return None
    return _Endpoint(name.upper(), host, int(port))


def _refuse_shared_ports(bind: Sequence[_Endpoint], problems: list[str]) -> None:
    """Two listeners on one port need different addresses or address families."""
    for index, one in enumerate(bind):
        for other in bind[:index]:
            clash = one.host == other.host or one.host in _ANY_ADDRESS or other.host in _ANY_ADDRESS
            if one.port and one.port == other.port and clash and (":" in one.host) == (":" in other.host):
                problems.append(f"listeners: {other.name} and {one.name} both want port {one.port}; each needs its own")


def _parse_protocol_map(entries: Sequence[str], problems: list[str]) -> Mapping[str, str]:
    protocols = {name: name for name in PROTOCOLS}
    seen: set[str] = set()
    for entry in entries:
        name, colon, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not colon or not name or protocol not in PROTOCOLS:
            problems.append(
                f"listener.security.protocol.map: {entry!r} is not NAME:PROTOCOL, "
                f"PROTOCOL being one of {', '.join(PROTOCOLS)}"
            )
        elif name in seen:
            problems.append(f"listener.security.protocol.map: {name} is there twice")
        else:
            protocols[name] = protocol
            seen.add(name)
    return protocols


def _join(
    endpoint: _Endpoint, advertised_at: _Endpoint | None, protocols: Mapping[str, str], problems: list[str]
) -> Listener:
    name, host, port = endpoint
    protocol = protocols.get(name)
    if protocol is None:
        problems.append(
            f"listeners: {name} has no protocol: name it in listener.security.protocol.map, "
            f"for example {name}:PLAINTEXT"
        )
    elif protocol not in SUPPORTED_PROTOCOLS:
        problems.append(f"listeners: {name} uses {protocol}, which Ottla does not support yet; use PLAINTEXT")
    if advertised_at is not None and advertised_at.host in _ANY_ADDRESS:
        problems.append(
            f"advertised.listeners: {advertised_at.host or 'an empty host'} of {name} is no address for a client "
            "to connect to; give this machine's name or address"
        )
    if advertised_at is None and host in _ANY_ADDRESS:
        problems.append(
            f"listeners: {name} listens on all interfaces, so clients must be told an address: "
            f"set advertised.listeners={name}://HOST:{port}, HOST being this machine's name or address"
        )
    advertised = advertised_at or endpoint
    return Listener(
        name,
        host or "0.0.0.0",
        port,
        protocol or "PLAINTEXT",
        advertised.host,
        advertised.port or (port if advertised_at else 0),
    )
