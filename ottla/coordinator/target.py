"""Target assignment (KIP-848): subscriptions, resolved regular expressions, and the assignor's result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from ottla.cluster.image import Image
from ottla.coordinator.assignors import ASSIGNORS, EMPTY, Assignment, MemberSpec
from ottla.coordinator.consumer_group_member import ConsumerMember
from ottla.coordinator.regex import matching

_NO_TOPICS: frozenset[str] = frozenset()


class Resolved(NamedTuple):
    """The topics that a regular expression matched when it was last resolved."""

    topics: frozenset[str]
    version: int = 0
    timestamp_ms: int = 0


Regexes = Mapping[str, Resolved]


def subscribed_names(member: ConsumerMember, regexes: Regexes) -> frozenset[str]:
    resolved = regexes.get(member.regex) if member.regex else None
    return member.topic_names if resolved is None else member.topic_names | resolved.topics


def subscribed_ids(member: ConsumerMember, regexes: Regexes, image: Image) -> frozenset[bytes]:
    """Of topics that exist."""
    topics = image.topics
    return frozenset(topics[name].id for name in subscribed_names(member, regexes) if name in topics)


def resolve(wanted: Iterable[str], known: Regexes, image: Image, now_ms: int, *, again: bool) -> dict[str, Resolved]:
    """The topics of these expressions. With `again` the known ones are resolved again: topics have changed."""
    resolved = {}
    for regex in wanted:
        old = known.get(regex)
        if old is None or again:
            topics = matching(regex, image.topics)
            if old is None or topics != old.topics:
                old = Resolved(topics, image.version, now_ms)
        resolved[regex] = old
    return resolved


def metadata_hash(members: Iterable[ConsumerMember], regexes: Regexes, image: Image) -> int:
    """A hash of everything about the topics that an assignment depends on. If it changes, a new assignment is
    needed."""
    subscriptions = {(member.topic_names, member.regex) for member in members}
    names: set[str] = set()
    for topic_names, regex in subscriptions:
        names |= topic_names
        names |= regexes[regex].topics if regex in regexes else _NO_TOPICS
    digest = blake2b(digest_size=8)
    for name in sorted(names & image.topics.keys()):
        topic = image.topics[name]
        digest.update(f"{name} {topic.id.hex()} {len(topic.partitions)}\n".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


def preferred_assignor(members: Iterable[ConsumerMember], available: tuple[str, ...]) -> str:
    """The one that most members name; the first configured one if none does."""
    votes: dict[str, int] = {}
    for member in members:
        if member.server_assignor in available:
            votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
    return max(sorted(votes), key=votes.__getitem__, default=available[0])


def target_assignment(
    assignor: str,
    members: Mapping[str, ConsumerMember],
    targets: Mapping[str, Assignment],
    regexes: Regexes,
    image: Image,
) -> dict[str, Assignment]:
    """The new target of every member. `targets`: the last one."""
    ids: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}
    specs = {}
    for member in members.values():
        subscription = member.topic_names, member.regex
        if subscription not in ids:
            ids[subscription] = subscribed_ids(member, regexes, image)
        specs[member.id] = MemberSpec(ids[subscription], targets.get(member.id, EMPTY))
    topics = frozenset[bytes]().union(*ids.values())
    counts = {topic: len(image.topics[image.names[topic]].partitions) for topic in topics}
    return ASSIGNORS[assignor](specs, counts)
