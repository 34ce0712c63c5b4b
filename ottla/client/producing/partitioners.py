"""Partitioners: which partition a record goes to.

A record with a key goes where every client of Kafka sends that key: murmur2 of it, modulo the number of partitions,
whether the partition has a leader or not. A record without one may go anywhere, and partitioners differ:
- sticky fills a batch for one partition, then one for the next: few, large requests, evenly spread (KIP-480, KIP-794);
- round_robin gives every record to the next partition, random to any;
- shuffled_round_robin does as round_robin, but takes the partitions in an order that chance decides once per producer,
  as Kafka's clients before 2.4 took them in no particular order;
- hash treats no key like an empty one;
- priority gives each priority a band of partitions of its own, so that urgent records do not queue behind others;
- a function decides for itself.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import index
from typing import Final, Protocol

from ottla.client.core.metadata import TopicMetadata
from ottla.client.errors import BadSetting, ClientError
from ottla.wire.records import Record

_MULTIPLIER: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF
_MASK_64: Final = (1 << 64) - 1
_PRIORITY_HEADER: Final = "priority"

Function = Callable[[str, Record, Sequence[int]], int]
"""TopicMetadata, record, all partitions of the topic: the one to take."""


class Partitioner(Protocol):
    def choose(self, topic: TopicMetadata, record: Record) -> int:
        """One of the topic's partitions."""

    def appended(self, topic: TopicMetadata, partition: int, size: int) -> None:
        """So many bytes were added to a batch of this partition."""
        return


def murmur2(data: bytes) -> int:
    """MurmurHash2 with the Java client's seed, unsigned."""
    words = len(data) >> 2
    value = _SEED ^ len(data)
    for word in struct.unpack_from(f"<{words}I", data):
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    tail = data[words << 2 :]
    if tail:
        value = (value ^ int.from_bytes(tail, "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of_key(key: bytes, count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % count


class Chance:
    """Numbers that look random and repeat with their seed (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK_64

    def below(self, limit: int) -> int:
        self._state = self._state + 0x9E3779B97F4A7C15 & _MASK_64
        mixed = self._state
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK_64
        return (mixed ^ mixed >> 31) % limit


class _ByKey(Partitioner, ABC):
    """What those that differ only for records without a key have in common."""

    def choose(self, topic: TopicMetadata, record: Record) -> int:
        if record.key is not None:
            return partition_of_key(record.key, len(topic.leaders))
        return self._without_key(topic, topic.available or sorted(topic.leaders))

    @abstractmethod
    def _without_key(self, topic: TopicMetadata, choice: Sequence[int]) -> int: ...


class StickyPartitioner(_ByKey):
    """A batch for one partition, then a batch for the next, beginning anywhere."""

    def __init__(self, seed: int, batch_size: int) -> None:
        self._chance = Chance(seed)
        self._batch_size = batch_size
        self._counters: dict[str, int] = {}
        self._chosen: dict[str, tuple[int, int]] = {}
        """The partition being filled, and how many bytes it got."""

    def _without_key(self, topic: TopicMetadata, choice: Sequence[int]) -> int:
        chosen = self._chosen.get(topic.name)
        if chosen is not None and chosen[0] in choice:
            return chosen[0]
        counter = self._counters.get(topic.name)
        counter = self._chance.below(len(choice)) if counter is None else counter + 1
        self._counters[topic.name] = counter
        partition = choice[counter % len(choice)]
        self._chosen[topic.name] = (partition, 0)
        return partition

    def appended(self, topic: TopicMetadata, partition: int, size: int) -> None:
        chosen = self._chosen.get(topic.name)
        if chosen is None or chosen[0] != partition:
            return
        if chosen[1] + size >= self._batch_size:
            del self._chosen[topic.name]
        else:
            self._chosen[topic.name] = (partition, chosen[1] + size)


class RoundRobinPartitioner(_ByKey):
    def __init__(self) -> None:
        self._counters: dict[tuple[str, int], int] = {}

    def _without_key(self, topic: TopicMetadata, choice: Sequence[int]) -> int:
        return self._next((topic.name, 0), choice)

    def _next(self, key: tuple[str, int], choice: Sequence[int]) -> int:
        self._counters[key] = counter = self._counters.get(key, -1) + 1
        return choice[counter % len(choice)]


class ShuffledRoundRobinPartitioner(RoundRobinPartitioner):
    """Every partition in turn, in an order of this producer's own: partitions have ranks that its seed decides, so
    the order stays while leaders come and go."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = Chance(seed)
        self._ranks: dict[tuple[str, int], int] = {}
        self._orders: dict[str, tuple[Sequence[int], list[int]]] = {}
        """The partitions to choose from when they were last ordered, and their order."""

    def _without_key(self, topic: TopicMetadata, choice: Sequence[int]) -> int:
        known = self._orders.get(topic.name)
        if known is None or known[0] != choice:
            known = (choice, sorted(choice, key=lambda partition: self._rank(topic.name, partition)))
            self._orders[topic.name] = known
        return self._next((topic.name, 0), known[1])

    def _rank(self, topic: str, partition: int) -> int:
        if (topic, partition) not in self._ranks:
            self._ranks[topic, partition] = self._chance.below(1 << 64)
        return self._ranks[topic, partition]


class RandomPartitioner(_ByKey):
    def __init__(self, seed: int) -> None:
        self._chance = Chance(seed)

    def _without_key(self, topic: TopicMetadata, choice: Sequence[int]) -> int:
        return choice[self._chance.below(len(choice))]


class HashPartitioner(_ByKey):
    def _without_key(self, topic: TopicMetadata, choice: Sequence[int]) -> int:
        return partition_of_key(b"", len(topic.leaders))


def priority_in_header(record: Record) -> int:
    """The number in the header `priority`; 0, the most urgent, if there is none."""
    for name, value in record.headers:
        if name == _PRIORITY_HEADER and value is not None:
            try:
                return max(0, int(value))
            except ValueError:
                raise ClientError(f"the header {_PRIORITY_HEADER!r} is {value!r}, which is no number") from None
    return 0


class PriorityPartitioner(RoundRobinPartitioner):
    """Bands of neighbouring partitions, the first for priority 0. Within a band a key keeps its partition, and
    records without one go round-robin.

    `weights` are the bands' shares; every band has at least one partition as long as there are enough, and a
    priority beyond the last band goes to the last.
    """

    def __init__(self, weights: Sequence[int], priority_of: Callable[[Record], int] = priority_in_header) -> None:
        if not weights or min(weights) <= 0:
            raise BadSetting("every band of priorities needs a weight of at least 1")
        super().__init__()
        self._weights = tuple(weights)
        self._priority_of = priority_of

    def band(self, priority: int, count: int) -> range:
        """The partitions of a priority, of so many in all."""
        bands = min(len(self._weights), count)
        weights = self._weights[:bands]
        at = min(priority, bands - 1)
        # One for each, the rest by weight: the bounds rise, and the last is the number of partitions.
        spare, total = count - bands, sum(weights)
        return range(at + spare * sum(weights[:at]) // total, at + 1 + spare * sum(weights[: at + 1]) // total)

    def choose(self, topic: TopicMetadata, record: Record) -> int:
        priority = self._priority_of(record)
        band = self.band(priority, len(topic.leaders))
        if record.key is not None:
            return band[partition_of_key(record.key, len(band))]
        choice = [partition for partition in topic.available if partition in band] or band
        return self._next((topic.name, band.start), choice)


class FunctionPartitioner(Partitioner):
    """By a function of the user's."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def choose(self, topic: TopicMetadata, record: Record) -> int:
        return index(self._function(topic.name, record, sorted(topic.leaders)))


def partitioner_of(
    choice: str | Function, *, seed: int = 0, batch_size: int = 16_384, weights: Sequence[int] = (1, 1, 1)
) -> Partitioner:
    """By the name users know it by."""
    if callable(choice):
        return FunctionPartitioner(choice)
    makers: dict[str, Callable[[], Partitioner]] = {
        "sticky": lambda: StickyPartitioner(seed, batch_size),
        "round_robin": RoundRobinPartitioner,
        "shuffled_round_robin": lambda: ShuffledRoundRobinPartitioner(seed),
        "random": lambda: RandomPartitioner(seed),
        "hash": HashPartitioner,
        "priority": lambda: PriorityPartitioner(weights),
    }
    if choice not in makers:
        raise BadSetting(f"there is no partitioner {choice!r}; there are {', '.join(makers)}")
    return makers[choice]()
