"""The journal: changes of the cluster as log lines for operators. Pure.

Changes within a short time are reported together: two images are compared, and the same change of many partitions is
one line. Lines are in the order of cause and effect: brokers, topics, leaders, ISRs, reassignments. Changes of topics
before a broker joined or left are reported before that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from ottla.cluster import changes as c
from ottla.cluster.image import Image
from ottla.cluster.model import NO_BROKER, BrokerRegistration, PartitionState, TopicImage

NAMED_MAX: Final = 5
"""So many topics or partitions are named in a line; of more only the number."""


class Event(NamedTuple):
    level: int
    text: str


class _Moved(NamedTuple):
    """A partition before and after."""

    name: str
    old: PartitionState
    new: PartitionState


_TOPIC_CHANGES: Final = (c.TopicCreated, c.TopicDeleted, c.PartitionsAdded, c.TopicConfigChanged)

FirstStates = dict[tuple[bytes, int], PartitionState]
"""The first states of partitions without one in the old image, by topic id and number."""


class Journal:
    """Collects changes until `events` reports them."""

    def __init__(self, in_sync_min: Callable[[TopicImage], int]) -> None:
        self._in_sync_min = in_sync_min
        self._old: Image | None = None
        self._unclean: set[str] = set()
        self._first_states: FirstStates = {}
        self._earlier: list[Event] = []
        self._topics_changed = False
        self._stopping: set[tuple[int, int]] = set()  # brokers that were draining, with their epochs

    def note(self, old: Image, change: c.Change) -> None:
        """The image was `old` before this change, and perhaps before others."""
        if isinstance(change, c.BrokerRegistered | c.BrokerGone) and self._topics_changed:
            self._earlier += self._collected(old)
        if self._old is None:
            self._old = old
        self._topics_changed |= isinstance(change, _TOPIC_CHANGES)
        if isinstance(change, c.BrokerRegistered) and change.draining:
            self._stopping.add((change.id, change.epoch))
        if not isinstance(change, c.PartitionChanged) or (topic := old.topic_by_id(change.topic_id)) is None:
            return
        if change.partition < len(topic.partitions):
            was = topic.partitions[change.partition]
            if not was.initialized:
                self._first_states[topic.id, change.partition] = change.applied_to(was)
            elif is_unclean(was, change):
                self._unclean.add(_name(topic, change.partition))

    def events(self, new: Image) -> list[Event]:
        """The changes so far, up to this image."""
        earlier, self._earlier = self._earlier, []
        return earlier + self._collected(new)

    def _collected(self, new: Image) -> list[Event]:
        old, unclean, first_states = self._old, self._unclean, self._first_states
        self._old, self._unclean, self._first_states, self._topics_changed = None, set(), {}, False
        if old is None or old is new:
            return []
        moved = list(_moved(old, new, first_states))
        stopping = {broker for broker, _ in self._stopping}
        self._stopping = {(live.id, live.epoch) for live in new.brokers.values() if live.draining}
        return [
            *_brokers(old, new, stopping),
            *_topics(old, new),
            *_settings(old, new),
            *_leaders(old, new, moved, unclean, stopping),
            *_in_sync(new, moved, stopping),
            *_acceptance(old, new, first_states, self._in_sync_min, stopping),
            *_reassigned(moved),
        ]


def is_unclean(old: PartitionState, new: PartitionState | c.PartitionChanged) -> bool:
    """Whether the new leader may lack acknowledged records: it was neither in sync nor eligible nor the last leader."""
    if new.leader in (NO_BROKER, old.leader) or not old.initialized:
        return False
    return new.leader not in (*old.in_sync, *old.eligible, old.last_leader)


def _name(topic: TopicImage, index: int) -> str:
    return f"{topic.name}-{index}"


def _pairs_of(
    before: TopicImage | None, topic: TopicImage, first_states: FirstStates
) -> Iterator[tuple[int, PartitionState, PartitionState]]:
    """Each partition before (in the old image, or its first state) and after."""
    known = before.partitions if before is not None and before.id == topic.id else ()
    for index, now in enumerate(topic.partitions):
        was = known[index] if index < len(known) else None
        if was is None or not was.initialized:
            was = first_states.get((topic.id, index), was)
        if was is not None:
            yield index, was, now


def _moved(old: Image, new: Image, first_states: FirstStates) -> Iterator[_Moved]:
    """Partitions whose state has changed."""
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if before is not topic:
            for index, was, now in _pairs_of(before, topic, first_states):
                if was is not now and was != now:
                    yield _Moved(_name(topic, index), was, now)


def _listed(names: Iterable[object]) -> str:
    listed = [str(name) for name in names]
    more = f", and {len(listed) - NAMED_MAX} more" if len(listed) > NAMED_MAX else ""
    return ", ".join(listed[:NAMED_MAX]) + more


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _subject(names: list[str]) -> str:
    """One partition by name, several by count and names."""
    return names[0] if len(names) == 1 else f"{len(names)} partitions ({_listed(names)})"


def _ids(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def _info(text: str) -> Event:
    return Event(logging.INFO, text)


def _warning(text: str) -> Event:
    return Event(logging.WARNING, text)


# Brokers and topics.


def _brokers(old: Image, new: Image, stopping: set[int]) -> Iterator[Event]:
    for broker_id in sorted(old.brokers.keys() | new.brokers.keys()):
        was, now = old.brokers.get(broker_id), new.brokers.get(broker_id)
        if now is None and was is not None:
            stopped = was.draining or broker_id in stopping
            why = "it has stopped" if stopped else "its session ended (killed, hung, or cut off from the store)"
            yield _info(f"broker {broker_id} left the cluster: {why}")
        elif now is not None and (was is None or was.epoch != now.epoch):
            again = " again" if was is not None else ""
            yield _info(f"broker {broker_id} joined the cluster{again}: {_address(now)}, broker epoch {now.epoch}")
        elif now is not None and was is not None and now.draining and not was.draining:
            yield _info(f"broker {broker_id} is stopping, and hands over what it leads")


def _address(broker: BrokerRegistration) -> str:
    first = broker.endpoints[0] if broker.endpoints else None
    where = "no listener" if first is None else f"{first.host}:{first.port}"
    return where if broker.rack is None else f"{where}, rack {broker.rack}"


def _topics(old: Image, new: Image) -> Iterator[Event]:
    known = {topic.id for topic in old.topics.values()}
    present = {topic.id for topic in new.topics.values()}
    deleted = [topic.name for topic in old.topics.values() if topic.id not in present]
    created = [topic for topic in new.topics.values() if topic.id not in known]
    if deleted:
        yield _info(f"{_topic_names(deleted)} deleted")
    if len(created) > NAMED_MAX:
        in_all = count(sum(len(topic.partitions) for topic in created), "partition")
        yield _info(f"{_topic_names([topic.name for topic in created])} created: {in_all} in all")
    else:
        for topic in created:
            replicas = len(topic.partitions[0].replicas) if topic.partitions else 0
            counts = f"{count(len(topic.partitions), 'partition')}, {count(replicas, 'replica')} each"
            yield _info(f"topic {topic.name} created: {counts}")
    for topic in new.topics.values():
        before = old.topics.get(topic.name)
        if before is None or before is topic or before.id != topic.id:
            continue
        if (more := len(topic.partitions) - len(before.partitions)) > 0:
            yield _info(f"topic {topic.name} has {count(len(topic.partitions), 'partition')} now, {more} more")
        if topic.configs != before.configs:
            yield _info(f"topic {topic.name}: settings are now {_pairs(topic.configs.items())}")


def _topic_names(names: list[str]) -> str:
    return f"topic {names[0]}" if len(names) == 1 else f"{len(names)} topics ({_listed(names)})"


def _pairs(settings: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(settings)) or "those of the broker"


def _settings(old: Image, new: Image) -> Iterator[Event]:
    if old.broker_configs is new.broker_configs:
        return
    known = old.broker_configs.keys() | new.broker_configs.keys()
    for broker in (None, *sorted(each for each in known if each is not None)):
        settings = new.broker_configs.get(broker, {})
        if settings != old.broker_configs.get(broker, {}):
            whose = "all brokers" if broker is None else f"broker {broker}"
            yield _info(f"{whose}: dynamic settings are now {_pairs(settings.items()) if settings else 'none'}")


# Partitions.


def _leaders(old: Image, new: Image, moved: list[_Moved], unclean: set[str], stopping: set[int]) -> Iterator[Event]:
    alike: dict[tuple[int, int, str], list[str]] = {}
    for name, was, now in moved:
        if was.initialized and now.leader != was.leader:
            why = _why_elected(old, new, was, now, unclean=name in unclean)
            alike.setdefault((was.leader, now.leader, why), []).append(name)
    for (before, after, why), names in alike.items():
        has = "has" if len(names) == 1 else "have"
        if after == NO_BROKER:
            text = f"{_subject(names)} {has} no leader, broker {before} led: {why}"
            yield _info(text) if before in stopping else _warning(text)
            continue
        instead = "no leader before" if before == NO_BROKER else f"broker {before} led"
        text = f"{_subject(names)} {has} leader {after}, {instead}: {why}"
        yield _warning(text) if why.startswith("unclean") else _info(text)


def _why_elected(old: Image, new: Image, was: PartitionState, now: PartitionState, *, unclean: bool) -> str:
    if now.leader == NO_BROKER:
        held = "" if not (now.in_sync or now.eligible) else f" ({_ids((*now.in_sync, *now.eligible))})"
        return f"no broker is alive that has all acknowledged records{held}; start one of them"
    if unclean:
        return "unclean election, the new leader was not in sync: acknowledged records may be lost"
    if was.leader == NO_BROKER:
        return f"broker {now.leader} is back"
    last = new.brokers.get(was.leader)
    before = old.brokers.get(was.leader)
    if last is None:
        return f"broker {was.leader} left"
    if last.draining:
        return f"broker {was.leader} is stopping"
    if before is not None and before.epoch != last.epoch:
        return f"broker {was.leader} restarted"
    if was.leader not in now.replicas or was.adding or was.removing:
        return "reassignment"
    if now.leader == now.replicas[0]:
        return "it is the preferred replica"
    return "elected on request"


def _in_sync(new: Image, moved: list[_Moved], stopping: set[int]) -> Iterator[Event]:
    lost: dict[tuple[int, str], list[str]] = {}
    won: dict[int, list[str]] = {}
    for name, was, now in moved:
        if not was.initialized or not now.initialized:
            continue
        for broker in was.in_sync:
            if broker not in now.in_sync and broker in now.replicas:
                why = "stops" if broker in stopping else "fell behind" if broker in new.brokers else "left"
                lost.setdefault((broker, why), []).append(name)
        for broker in now.in_sync:
            if broker not in was.in_sync:
                won.setdefault(broker, []).append(name)
    for (broker, why), names in lost.items():
        yield _info(f"replica {broker} of {_subject(names)} is out of the in-sync set: it {why}")
    for broker, names in won.items():
        yield _info(f"replica {broker} of {_subject(names)} is in sync")


def _acceptance(
    old: Image, new: Image, first_states: FirstStates, in_sync_min: Callable[[TopicImage], int], stopping: set[int]
) -> Iterator[Event]:
    """Whether acks=all is accepted: depends on the ISR and on the setting. New partitions are expected to accept it."""
    short: list[str] = []
    enough: list[str] = []
    gone: set[int] = set()
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if before is topic:
            continue
        least = in_sync_min(topic)
        least_before = least if before is None or before.id != topic.id else in_sync_min(before)
        for index, was, now in _pairs_of(before, topic, first_states):
            new_one = (topic.id, index) in first_states
            if (was is now and least == least_before and not new_one) or not was.initialized or not now.initialized:
                continue
            refused_before = not new_one and len(was.in_sync) < min(least_before, len(now.replicas))
            refused = len(now.in_sync) < min(least, len(now.replicas))
            if refused and not refused_before:
                short.append(_name(topic, index))
                gone |= set(was.in_sync) - set(now.in_sync)
            elif refused_before and not refused:
                enough.append(_name(topic, index))
    if short:
        text = f"{_subject(short)}: fewer replicas in sync than min.insync.replicas, acks=all is refused"
        on_purpose = bool(gone) and gone <= stopping
        yield _info(text) if on_purpose else _warning(text)
    if enough:
        yield _info(f"{_subject(enough)}: enough replicas in sync, acks=all is accepted again")


def _reassigned(moved: list[_Moved]) -> Iterator[Event]:
    alike: dict[str, list[str]] = {}
    for name, was, now in moved:
        if (was.adding, was.removing) == (now.adding, now.removing) and was.replicas == now.replicas:
            continue
        if now.adding or now.removing:
            target = [broker for broker in now.replicas if broker not in now.removing]
            source = [broker for broker in now.replicas if broker not in now.adding]
            text = f"reassignment begins from brokers {_ids(source)} to brokers {_ids(target)}"
        elif was.adding and not set(was.adding) & set(now.replicas):
            text = f"reassignment cancelled, the replicas are {_ids(now.replicas)}"
        else:
            before = [broker for broker in was.replicas if broker not in was.adding]
            text = f"reassignment done, the replicas are {_ids(now.replicas)} (they were {_ids(before)})"
        alike.setdefault(text, []).append(name)
    for text, names in alike.items():
        yield _info(f"{_subject(names)}: {text}")
