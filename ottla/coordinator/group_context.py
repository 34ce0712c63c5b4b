"""What the machines of groups may know of the world around them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ottla.cluster.image import Image
from ottla.config.broker_config import BrokerConfig


class GroupContext(Protocol):
    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now."""

    @property
    def image(self) -> Image:
        """The topics and partitions as they are now."""

    def new_id(self) -> str:
        """A random id, unlike any other: the end of a new member's name."""


class MemberClient(NamedTuple):
    """Who asks: shown by the descriptions of groups."""

    id: str = ""
    host: str = ""
