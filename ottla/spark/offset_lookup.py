"""Cluster queries of a reader: partitions, first and last offsets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, cast

from ottla.blocking import Admin
from ottla.client.admin.topic_admin import TopicDescription
from ottla.client.errors import ClientError, UnknownTopic
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.spark import clients
from ottla.spark.offset_ranges import Offsets
from ottla.spark.options import EARLIEST, LATEST, BadOption, Edge, ReadOptions, Times


class NotThere(BadOption):
    """A topic, or a partition, that was there a moment ago."""


class Start(NamedTuple):
    offsets: Offsets
    at_end: frozenset[TopicPartition]
    """Partitions that start at their log end: a second lookup gives another offset."""


class OffsetLookup:
    """The cluster, for the options of one reader. Each call asks again: topics grow, and patterns match new ones."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[TopicPartition]:
        return self.topics()[0]

    def topics(self, *, only_there: bool = False) -> tuple[list[TopicPartition], dict[str, bytes]]:
        """All partitions of the options, and their topic ids. UnknownTopic for a missing topic, and BadOption for a
        missing assigned partition, because a lookup of its offsets would wait for it. `only_there`: without them."""
        options = self._options
        with clients.admin(options.kafka) as admin:
            if options.pattern is not None:
                described = [topic for topic in admin.list_topics() if re.fullmatch(options.pattern, topic.name)]
            else:
                names = options.topics or {tp.topic for tp in options.assigned}
                described = list(_described(admin, names, only_there=only_there))
        there = sorted(TopicPartition(topic.name, part.partition) for topic in described for part in topic.partitions)
        missing = sorted(set(options.assigned).difference(there))
        if missing and not only_there:
            raise BadOption(f"assign names {', '.join(map(str, missing[:5]))}, which is not there")
        partitions = [tp for tp in there if tp in options.assigned] if options.assigned else there
        return partitions, {topic.name: topic.topic_id for topic in described}

    def ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._listed(dict.fromkeys(partitions, LATEST))

    def beginnings(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._listed(dict.fromkeys(partitions, EARLIEST))

    def starting(self) -> Start:
        """Where the options say to begin."""
        return self._edge(self._options.starting, "startingOffsets", self._options.latest_if_no_time)

    def ending(self) -> Offsets:
        return self._edge(self._options.ending, "endingOffsets", True).offsets

    def _edge(self, edge: Edge, name: str, latest_if_no_time: bool) -> Start:
        partitions = self.partitions()
        if edge.times is not None:
            times = _of_each(partitions, edge.times, name + "ByTimestamp")
            return self._at_times(times, latest_if_no_time)
        assert edge.offsets is not None
        offsets = _of_each(partitions, edge.offsets, name)
        words = {tp: offset for tp, offset in offsets.items() if offset < 0}
        at_end = frozenset(tp for tp, offset in words.items() if offset == LATEST)
        return Start(offsets | self._listed(words), at_end)

    def _at_times(self, times: Mapping[TopicPartition, int], latest_if_no_time: bool) -> Start:
        found = self._listed(times)
        late = [tp for tp, offset in found.items() if offset < 0]
        if late and not latest_if_no_time:
            raise BadOption(
                f"{late[0]} has nothing as young as {times[late[0]]} ms; "
                "startingOffsetsByTimestampStrategy=latest begins at the end there"
            )
        return Start(found | self.ends(late), frozenset(late))

    def _listed(self, times: Mapping[TopicPartition, int]) -> Offsets:
        if not times:
            return {}
        with clients.admin(self._options.kafka) as admin:
            return _list_offsets(admin, times, self._options.read_committed)


def _described(admin: Admin, names: Collection[str], *, only_there: bool) -> Iterable[TopicDescription]:
    try:
        return admin.describe_topics(list(names)).values()
    except ClientError as error:
        if not only_there or any(not isinstance(each, UnknownTopic) for each in error.errors.values()):
            raise
        return cast("Mapping[str, TopicDescription]", error.results).values()


def _list_offsets(admin: Admin, times: Mapping[TopicPartition, int], read_committed: bool) -> Offsets:
    try:
        listed = admin.list_offsets(times, read_committed=read_committed)
    except ClientError as error:
        if error.code is ErrorCode.unknown_topic_or_partition:
            raise NotThere(f"the topics to read do not exist: {error}") from None
        raise
    return {tp: at.offset for tp, at in listed.items()}


def _of_each(partitions: Collection[TopicPartition], given: Times, name: str) -> dict[TopicPartition, int]:
    """For all partitions and no others, as the connector demands it."""
    if isinstance(given, int):
        return dict.fromkeys(partitions, given)
    missing = sorted(set(partitions) - set(given))
    strange = sorted(set(given) - set(partitions))
    if missing or strange:
        wrong = [f"{tp} is missing" for tp in missing] + [f"{tp} is not read" for tp in strange]
        raise BadOption(f"{name} names every partition that is read and no other: {', '.join(wrong[:5])}")
    return dict(given)
