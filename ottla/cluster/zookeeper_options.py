"""ZooKeeper connection options: address with chroot, timeouts, credentials."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.errors import Fault

if TYPE_CHECKING:
    from ottla.config import BrokerConfig

DEFAULT_PORT: Final = 2181
_HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\],]+)(:(?P<port>\d{1,5}))?")


class Credentials(NamedTuple):
    """`scheme` is digest (ZooKeeper's own) or sasl (DIGEST-MD5)."""

    scheme: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.scheme}:{self.user}:...)"

    @classmethod
    def parse(cls, text: str) -> Credentials:
        """`digest:USER:PASSWORD` or `sasl:USER:PASSWORD`; config has checked it."""
        return cls(*text.split(":", 2))


class ZooKeeperOptions(NamedTuple):
    session_timeout_ms: int = 18_000
    connection_timeout_ms: int = 18_000
    credentials: Credentials | None = None
    set_acl: bool = False

    @classmethod
    def of(cls, config: BrokerConfig) -> ZooKeeperOptions:
        auth = config.zookeeper_auth
        return cls(
            config.zookeeper_session_timeout_ms,
            config.zookeeper_connection_timeout_ms or config.zookeeper_session_timeout_ms,
            None if auth is None else Credentials.parse(auth),
            config.zookeeper_set_acl,
        )


class Address(NamedTuple):
    """`chroot` is empty, or begins with a slash and does not end with one."""

    hosts: str
    chroot: str

    def __str__(self) -> str:
        return self.hosts + self.chroot

    @classmethod
    def parse(cls, text: str) -> Address:
        """`HOST:PORT[,HOST:PORT...][/chroot]`, as in Kafka's zookeeper.connect."""
        servers, slash, path = text.partition("/")
        hosts = []
        for server in servers.split(","):
            found = _HOST.fullmatch(server.strip())
            if found is None or not 0 < int(found["port"] or DEFAULT_PORT) < 65536:
                raise Fault(
                    f"{text!r} does not say where ZooKeeper is: use zookeeper:HOST:PORT[,HOST:PORT...][/chroot], "
                    "for example zookeeper:localhost:2181"
                )
            hosts.append(f"{found['host']}:{found['port'] or DEFAULT_PORT}")
        steps = path.rstrip("/").split("/") if path.strip("/") else []
        if any(step in ("", ".", "..") or not step.isprintable() for step in steps):
            raise Fault(f"{slash + path!r} cannot be a chroot: it is a path such as /ottla, without empty steps")
        return cls(",".join(hosts), "".join(f"/{step}" for step in steps))
