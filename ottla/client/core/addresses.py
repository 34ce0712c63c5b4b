"""Where to begin: `host:port`, as users write it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

DEFAULT_PORT: Final = 9092


def parse_bootstrap(text: str | Iterable[str]) -> list[tuple[str, int]]:
    """`host:port,host:port`, or a list of them; the port may be left out. ValueError says what is wrong."""
    addresses: list[tuple[str, int]] = []
    joined = text if isinstance(text, str) else ",".join(text)
    for part in filter(None, (part.strip() for part in joined.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]") or (":" in host and not host.startswith("[")):
            host, port = part, str(DEFAULT_PORT)
        if not (port.isascii() and port.isdecimal()) or not 0 < int(port[:6]) <= 65535 or not host.strip("[]"):
            raise ValueError(f"{part!r} is not host:port")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise ValueError("no address is given")
    return addresses
