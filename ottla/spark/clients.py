"""Clients of one Python worker: made when a task first needs one, cached for later tasks.

Spark uses its workers again and again, for one task at a time, and does not say when they end: clients that are cached
here are closed with the process. A client that failed is stopped, and the next task makes another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from typing import Any, Final, TypeVar

from ottla.blocking import Admin, Consumer, Producer
from ottla.client.core.metadata import MetadataSettings
from ottla.client.core.settings import ClientSettings
from ottla.client.errors import BadSetting
from ottla.spark.options import KAFKA, BadOption

C = TypeVar("C", Admin, Consumer, Producer)

ADMIN_SETTINGS: Final = frozenset(
    each.name.replace("_", ".") for part in (ClientSettings, MetadataSettings) for each in fields(part)
) | {"bootstrap.servers"}
"""What an administrative client understands of the options."""
FETCH_BYTES: Final = 8 * 2**20
"""Of a partition with one request, where the options do not say: tasks read much, and one partition at a time."""

TRANSACTIONAL_MAX: Final = 4
"""So many producers with transactional ids are kept: each has connections, and a worker may see many tasks."""

_idle: dict[tuple[object, ...], Any] = {}
_transactional: dict[tuple[object, ...], Transactional] = {}


class Transactional:
    """A producer with exclusive use of a transactional id, until another producer takes it over."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)
        self._is_new = True
        self.decided: int | None = None
        """The version that was committed last with it, if no other producer can have committed since."""
        self.producer = self._started()

    def take_over(self) -> Producer:
        """Fence all other producers of the id; their transactions are ended."""
        if not self._is_new:
            self.producer.init_transactions()
        self._is_new, self.decided = False, None
        return self.producer

    def renew(self) -> None:
        """With another producer, after this one has failed."""
        self.producer.stop()
        self._is_new, self.producer = True, self._started()

    def _started(self) -> Producer:
        producer = Producer(config=self._settings)
        producer.start()
        return producer


def admin(kafka: Mapping[str, str]) -> AbstractContextManager[Admin]:
    settings = {name: value for name, value in kafka.items() if name in ADMIN_SETTINGS}
    return _client(Admin, settings, lambda: Admin(config=settings))


def consumer(kafka: Mapping[str, str]) -> AbstractContextManager[Consumer]:
    """One that begins nowhere by itself, and belongs to no group."""
    return _client(Consumer, kafka, lambda: new_consumer(kafka))


def producer(kafka: Mapping[str, str]) -> AbstractContextManager[Producer]:
    return _client(Producer, kafka, lambda: new_producer(kafka))


@contextmanager
def transactional(kafka: Mapping[str, str], transactional_id: str) -> Iterator[Transactional]:
    """A kept producer may have lost its id to another one: `take_over` makes sure."""
    settings = {**kafka, "transactional.id": transactional_id}
    key = (os.getpid(), *sorted(settings.items()))
    client = _transactional.pop(key, None)
    if client is None:
        client = Transactional(settings)
    try:
        yield client
    except BaseException:
        client.producer.stop()
        raise
    _transactional[key] = client
    while len(_transactional) > TRANSACTIONAL_MAX:
        _transactional.pop(next(iter(_transactional))).producer.stop()


def new_consumer(kafka: Mapping[str, str]) -> Consumer:
    """Not started yet. BadOption for settings that it does not understand."""
    settings = {"max.partition.fetch.bytes": FETCH_BYTES, **kafka}
    try:
        return Consumer(config=settings, auto_offset_reset="none", enable_auto_commit=False)
    except BadSetting as problem:
        raise BadOption(_as_options(str(problem), kafka)) from None


def new_producer(kafka: Mapping[str, str]) -> Producer:
    try:
        return Producer(config=dict(kafka))
    except BadSetting as problem:
        raise BadOption(_as_options(str(problem), kafka)) from None


def _as_options(problem: str, kafka: Mapping[str, str]) -> str:
    """Settings by the names that they have as options: isolation_level is kafka.isolation.level."""
    message = problem.replace("there is no setting", "there is no option")
    message = re.sub(r"(?<=did you mean ')\w+", lambda found: KAFKA + found[0].replace("_", "."), message)
    for name in kafka:
        word = re.escape(name.replace(".", "_").replace("-", "_"))
        message = re.sub(rf"(?<![\w.]){word}(?!\w)", KAFKA + name, message, count=1)
    return message


@contextmanager
def _client(kind: type[C], settings: Mapping[str, str], make: Callable[[], C]) -> Iterator[C]:
    key = (os.getpid(), kind, *sorted(settings.items()))
    client: C | None = _idle.pop(key, None)
    if client is None:
        client = make()
        client.start()
    try:
        yield client
    except GeneratorExit:
        _idle[key] = client  # the last user has no more requests
        raise
    except BaseException:
        client.stop()
        raise
    _idle[key] = client
