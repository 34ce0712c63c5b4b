"""The configuration that a running broker has now: dynamic settings replace it as a whole."""

from __future__ import annotations

from ottla.config.broker import BrokerConfig


class LiveConfig:
    """Only the broker itself sets `current`; services read it whenever they need a setting."""

    __slots__ = ("current",)

    def __init__(self, config: BrokerConfig) -> None:
        self.current = config
