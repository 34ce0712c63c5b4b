"""How much clients may ask of one broker, all together and each."""

from __future__ import annotations

from typing import NamedTuple

from ottla.config.broker_config import BrokerConfig


class Limits(NamedTuple):
    frame_bytes_max: int = 104_857_600
    connections_max: int = 2**31 - 1
    connections_per_address_max: int = 2**31 - 1
    idle_ms_max: int = 600_000
    held_bytes_max: int = -1
    """The buffers of all half-received large frames together; -1: no limit."""
    unread_bytes_max: int = -1
    """What is loaded of large answers, for all clients together; -1: no limit."""
    pending_max: int = 1000
    """Unanswered requests of one connection."""
    pending_bytes_max: int = 104_857_600
    """Unread answers, or requests read ahead, of one connection."""

    @classmethod
    def of(cls, config: BrokerConfig) -> Limits:
        return cls(
            frame_bytes_max=config.socket_request_max_bytes,
            connections_max=config.max_connections,
            connections_per_address_max=config.max_connections_per_ip,
            idle_ms_max=config.connections_max_idle_ms,
            held_bytes_max=config.queued_max_request_bytes,
            unread_bytes_max=config.ottla_queued_max_response_bytes,
            pending_max=config.connection_inflight_requests_max,
            pending_bytes_max=config.connection_inflight_bytes_max,
        )
