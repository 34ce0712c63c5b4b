"""GroupContext: the settings, metadata and random ids that the state machine of groups depends on."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ottla.cluster.image import Image
from ottla.config.broker_config import BrokerConfig


class GroupContext(Protocol):
    @property
    def config(self) -> BrokerConfig:
        """The current settings."""

    @property
    def image(self) -> Image:
        """The current metadata."""

    def new_id(self) -> str:
        """A random UUID, for a member id."""


class MemberClient(NamedTuple):
    """The client of a member, for DescribeGroups."""

    id: str = ""
    host: str = ""
