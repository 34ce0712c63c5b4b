"""Text scenarios for groups of the next-generation protocol: what a member sends on the left, what it hears right.

    # a title
    topics t=4
    m1 join t                     -> epoch=1 t:0,1,2,3        joins with names (regex=, instance=, assignor=, timeout=)
    m1 beat has=t:0,1             -> epoch=2                  a heartbeat; has= is what it says it holds
    m1 leave                      -> epoch=-1                 `away`: a static member that means to come back
    c1 cjoin t                    -> generation=3 range       the classic protocol: cjoin, csync, cbeat, cleave
    m1 commit t                   -> none                     an offset of topic t; `fetch` likewise
    wait 45s                                                  time passes, timers fire
    own consumer.session.timeout.ms=60000                     settings of this group alone; `own` without any ends them
    reload                                                    another coordinator takes over, from the log
    group                         -> Stable 2/2 m1=2 m2=2     state, group epoch / target epoch, members with epochs

A member sends the epoch it heard last unless it says epoch=. What is not told is not on the right: `epoch=2` alone
means that the answer carried no assignment. All records pass through the bytes of the log; after each step the log
is read again and must give the same groups.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ottla.cluster import changes
from ottla.cluster.image import EMPTY, Image
from ottla.config import BrokerConfig, load_broker_config
from ottla.coordinator.decision import Decision
from ottla.coordinator.group_context import MemberClient
from ottla.coordinator.group_machine import GroupMachine
from ottla.coordinator.group_records import decode_key, decode_value, encode_key, encode_value
from ottla.errors import ErrorCode, Refused
from ottla.wire import messages
from ottla.wire.schema.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from ottla.wire.schema.consumer_protocol_assignment import ConsumerProtocolAssignment
from ottla.wire.schema.consumer_protocol_assignment import TopicPartition as Assigned
from ottla.wire.schema.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.wire.schema.consumer_protocol_subscription import TopicPartition as Owned
from ottla.wire.schema.heartbeat import HeartbeatRequest
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.schema.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.schema.offset_fetch import OffsetFetchRequestGroup
from ottla.wire.schema.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

DIRECTORY = Path(__file__).parent.parent / "scenarios"
GROUP = "g"
WALL_MS = 1_700_000_000_000
SUBSCRIPTION_VERSION = 1


def scenarios(name: str) -> list[Any]:
    """One parameter for each scenario in the file."""
    blocks = re.split(r"^# (.+)$", (DIRECTORY / name).read_text(), flags=re.MULTILINE)
    titles, bodies = blocks[1::2], blocks[2::2]
    return [
        pytest.param(body.strip().splitlines(), id=title.strip()) for title, body in zip(titles, bodies, strict=True)
    ]


class Context:
    """The context of the machine."""

    def __init__(self) -> None:
        self.config: BrokerConfig = load_broker_config()
        self.image: Image = EMPTY
        self.ids = 0

    def new_id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"


class Waiting:
    reply: Any = None

    def __init__(self) -> None:
        self.answered = False


class Scenario:
    def __init__(self) -> None:
        self.context = Context()
        self.now = 1000.0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.groups = GroupMachine(self.context)
        self.settings: dict[str, str] = {}
        self.epochs: dict[str, int] = {}
        self.instances: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.protocols: dict[str, str] = {}
        self.waiting: dict[str, Waiting] = {}

    def run(self, lines: list[str]) -> None:
        for number, line in enumerate(lines, 1):
            text = line.partition("  #")[0].strip()
            if not text:
                continue
            act, arrow, expected = (part.strip() for part in text.partition("->"))
            heard = self.act(act.split())
            if arrow:
                assert heard == " ".join(expected.split()), f"line {number}: {act}"
            self._check_log()

    # The context.

    def act(self, words: list[str]) -> str:
        verb, *rest = words
        if verb in ("topics", "add", "delete", "setting", "own", "wait", "reload", "group", "listed", "parts"):
            return getattr(self, verb)(*rest) or ""
        names = [word for word in rest[1:] if "=" not in word]
        options = dict(word.split("=", 1) for word in rest[1:] if "=" in word)
        try:
            return getattr(self, rest[0])(verb, names, options)
        except Refused as refused:
            return refused.code.name

    def own(self, *words: str) -> None:
        configs = dict(word.split("=", 1) for word in words)
        self.context.image = self.context.image.apply(changes.GroupConfigChanged(GROUP, configs))

    def topics(self, *words: str) -> None:
        for word in words:
            name, _, count = word.partition("=")
            topic_id = f"{name}:{self.context.image.version}".encode().ljust(16, b"\0")
            self.context.image = self.context.image.apply(
                changes.TopicCreated(topic_id, name, tuple((1,) for _ in range(int(count))), {})
            )

    def add(self, word: str) -> None:
        name, _, count = word.partition("=")
        topic = self.context.image.topics[name]
        first = len(topic.partitions)
        added = tuple((1,) for _ in range(int(count) - first))
        self.context.image = self.context.image.apply(changes.PartitionsAdded(topic.id, first, added))

    def delete(self, name: str) -> None:
        topic = self.context.image.topics[name]
        self.context.image = self.context.image.apply(changes.TopicDeleted(topic.id, name, ()))

    def setting(self, word: str) -> None:
        name, _, value = word.partition("=")
        self.settings[name] = value
        self.context.config = load_broker_config(flags=self.settings)

    def wait(self, word: str) -> None:
        """In steps, as a clock does."""
        end = self.now + float(word.removesuffix("s"))
        while (due := self.groups.deadline) is not None and due <= end:
            self.now = max(self.now, due)
            for decision in self.groups.expire(self.now, self.now_ms):
                self._apply(decision)
        self.now = end

    def reload(self) -> None:
        self.groups = GroupMachine(self.context)
        self._replay_into(self.groups)
        self._settle()

    def group(self) -> str:
        shown = self.groups.consumer_describe(GROUP)
        if shown.error_code:
            classic = self.groups.describe(GROUP)
            if classic.error_code:
                return ErrorCode(shown.error_code).name
            members = sorted(self._name(member.member_id) for member in classic.members)
            return " ".join(["classic", classic.group_state, *members])
        members = sorted(f"{self._name(member.member_id)}={member.member_epoch}" for member in shown.members)
        return " ".join([shown.group_state, f"{shown.group_epoch}/{shown.assignment_epoch}", *members])

    def parts(self) -> str:
        """Who has what."""
        shown = self.groups.consumer_describe(GROUP)
        return " ".join(
            f"{self._name(member.member_id)}={_partitions(member.assignment.topic_partitions, self.context.image)}"
            for member in sorted(shown.members, key=lambda member: self._name(member.member_id))
        )

    def listed(self) -> str:
        return " ".join(
            f"{each.group_id} {each.group_type} {each.group_state} {each.protocol_type}"
            for each in self.groups.list([], [])
        )

    # A member of the new protocol.

    def join(self, member: str, names: list[str], options: dict[str, str]) -> str:
        if "instance" in options:
            self.instances[member] = options["instance"]
        return self._heartbeat(
            member,
            ConsumerGroupHeartbeatRequest(
                member_epoch=0,
                rebalance_timeout_ms=int(float(options.get("timeout", "300s").removesuffix("s")) * 1000),
                subscribed_topic_names=names,
                subscribed_topic_regex=options.get("regex"),
                server_assignor=options.get("assignor"),
                topic_partitions=[],
            ),
        )

    def beat(self, member: str, names: list[str], options: dict[str, str]) -> str:
        full = "full" in names
        named = options.get("names")
        owned = self._owned(options["has"]) if "has" in options else None
        return self._heartbeat(
            member,
            ConsumerGroupHeartbeatRequest(
                member_epoch=int(options.get("epoch", self.epochs.get(member, 0))),
                rebalance_timeout_ms=300_000 if full else -1,
                subscribed_topic_names=None if named is None else [name for name in named.split(",") if name],
                subscribed_topic_regex=options.get("regex"),
                server_assignor=options.get("assignor"),
                topic_partitions=owned,
            ),
        )

    def leave(self, member: str, names: list[str], options: dict[str, str]) -> str:
        return self._heartbeat(member, ConsumerGroupHeartbeatRequest(member_epoch=-1))

    def away(self, member: str, names: list[str], options: dict[str, str]) -> str:
        return self._heartbeat(member, ConsumerGroupHeartbeatRequest(member_epoch=-2))

    def _heartbeat(self, member: str, request: ConsumerGroupHeartbeatRequest) -> str:
        request.group_id = GROUP
        request.member_id = member
        request.instance_id = self.instances.get(member)
        token = Waiting()
        self._apply(self.groups.consumer_heartbeat(request, MemberClient(member, "/h"), token, self.now, self.now_ms))
        response = _reply_of(token)
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        messages.encode(response, 1)
        self.epochs[member] = response.member_epoch
        said = f"epoch={response.member_epoch}"
        if response.assignment is None:
            return said
        return f"{said} {_partitions(response.assignment.topic_partitions, self.context.image) or 'nothing'}"

    def _owned(self, text: str) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(
                topic_id=self.context.image.topics[name].id, partitions=partitions
            )
            for name, partitions in _read_partitions(text)
        ]

    # A member of the classic protocol.

    def cjoin(self, member: str, names: list[str], options: dict[str, str]) -> str:
        """`has=` is what it owns; an eager member owns nothing when it joins."""
        subscription = ConsumerProtocolSubscription(
            topics=names,
            owned_partitions=[Owned(topic=name, partitions=at) for name, at in _read_partitions(options.get("has"))],
        )
        metadata = SUBSCRIPTION_VERSION.to_bytes(2, "big") + messages.encode(subscription, SUBSCRIPTION_VERSION)
        if "instance" in options:
            self.instances[member] = options["instance"]
        request = JoinGroupRequest(
            group_id=GROUP,
            member_id="" if "fresh" in options else self.ids.get(member, ""),
            group_instance_id=self.instances.get(member),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type=options.get("type", "consumer"),
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name in options.get("protocols", "range").split(",")
            ],
        )
        token = self.waiting[member] = Waiting()
        self._apply(self.groups.join(request, 3, MemberClient(member, "/h"), token, self.now, self.now_ms))
        return self.heard(member, [], {})

    def heard(self, member: str, names: list[str], options: dict[str, str]) -> str:
        """What became of a request that waited."""
        token = self.waiting[member]
        if not token.answered:
            return "waits"
        response = _reply_of(token)
        self.ids[member] = response.member_id
        self.epochs[member] = response.generation_id
        self.protocols[member] = response.protocol_name
        leads = " leads" if response.leader == response.member_id else ""
        return f"generation={response.generation_id} {response.protocol_name}{leads}"

    def csync(self, member_id: str, names: list[str], options: dict[str, str]) -> str:
        """`c1=t:0,1` among the options: what the leader assigns."""
        assignments = [
            SyncGroupRequestAssignment(
                member_id=self.ids[member],
                assignment=bytes(2)
                + messages.encode(
                    ConsumerProtocolAssignment(
                        assigned_partitions=[Assigned(topic=name, partitions=at) for name, at in _read_partitions(text)]
                    ),
                    0,
                ),
            )
            for member, text in options.items()
        ]
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.epochs[member_id],
            member_id=self.ids[member_id],
            group_instance_id=self.instances.get(member_id),
            protocol_type="consumer",
            protocol_name=self.protocols[member_id],
            assignments=assignments,
        )
        token = Waiting()
        self._apply(self.groups.sync(request, token, self.now, self.now_ms))
        if not token.answered:
            return "waits"
        data = _reply_of(token).assignment
        read = messages.decode(ConsumerProtocolAssignment, int.from_bytes(data[:2], "big"), data, 2)
        return _named_partitions((each.topic, each.partitions) for each in read.assigned_partitions) or "nothing"

    def cbeat(self, member: str, names: list[str], options: dict[str, str]) -> str:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=int(options.get("generation", self.epochs[member])),
            member_id=self.ids[member],
            group_instance_id=self.instances.get(member),
        )
        token = Waiting()
        self._apply(self.groups.heartbeat(request, token, self.now))
        return ErrorCode(_reply_of(token).error_code).name

    def cleave(self, member: str, names: list[str], options: dict[str, str]) -> str:
        identity = MemberIdentity(member_id=self.ids.get(member, member), group_instance_id=self.instances.get(member))
        token = Waiting()
        request = LeaveGroupRequest(group_id=GROUP, members=[identity])
        self._apply(self.groups.leave(request, token, self.now, self.now_ms))
        return ErrorCode(_reply_of(token).members[0].error_code).name

    # Offsets.

    def commit(self, member: str, names: list[str], options: dict[str, str]) -> str:
        request = OffsetCommitRequest(
            group_id=GROUP,
            member_id=self.ids.get(member, "" if member == "admin" else member),
            generation_id_or_member_epoch=int(options.get("epoch", self.epochs.get(member, -1))),
            group_instance_id=self.instances.get(member),
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=[OffsetCommitRequestPartition(committed_offset=1)])
                for name in names
            ],
        )
        token = Waiting()
        version = int(options.get("version", 9))
        self._apply(self.groups.commit_offsets(request, version, token, self.now, self.now_ms))
        _reply_of(token)
        return "none"

    def fetch(self, member: str, names: list[str], options: dict[str, str]) -> str:
        request = OffsetFetchRequestGroup(
            group_id=GROUP,
            member_id=None if member == "admin" else self.ids.get(member, member),
            member_epoch=int(options.get("epoch", self.epochs.get(member, -1))),
            topics=[],
        )
        token = Waiting()
        self._apply(self.groups.fetch_offsets(request, token, stable=False))
        _reply_of(token)
        return "none"

    # The shard.

    @property
    def now_ms(self) -> int:
        return WALL_MS + int(self.now * 1000)

    def _apply(self, decision: Decision) -> None:
        for key, value in decision.records:
            pair = encode_key(key), None if value is None else encode_value(value)
            self.log.append(pair)
            self._replay_one(self.groups, *pair)
        for token, reply in decision.replies:
            assert isinstance(token, Waiting)
            assert not token.answered, "answered twice"
            token.answered, token.reply = True, reply
        self._settle()

    def _settle(self) -> None:
        for decision in self.groups.settle(self.now, self.now_ms):
            if decision.records or decision.replies:
                self._apply(decision)

    def _replay_into(self, groups: GroupMachine) -> None:
        for key, value in self.log:
            self._replay_one(groups, key, value)

    def _replay_one(self, groups: GroupMachine, raw_key: bytes, raw_value: bytes | None) -> None:
        key = decode_key(raw_key)
        assert key is not None
        groups.replay(key, None if raw_value is None else decode_value(key, raw_value))

    def _check_log(self) -> None:
        """What was read from the log, whole or compacted, is what there is."""
        latest: dict[bytes, bytes | None] = {}
        for key, value in self.log:
            latest.pop(key, None)
            latest[key] = value
        compacted = list(latest.items())
        buried = [(key, value) for key, value in compacted if value is not None]
        for log in (self.log, compacted, buried):
            read = GroupMachine(self.context)
            for key, value in log:
                self._replay_one(read, key, value)
            assert _by_member(read) == _by_member(self.groups)

    def _name(self, member_id: str) -> str:
        return next((member for member, each in self.ids.items() if each == member_id), member_id)


def _by_member(groups: GroupMachine) -> Any:
    shown = groups.consumer_describe(GROUP)
    shown.error_message = None  # a classic group that the log does not know yet has another
    shown.members.sort(key=lambda member: member.member_id)
    for member in shown.members:
        for assignment in (member.assignment, member.target_assignment):
            assignment.topic_partitions.sort(key=lambda each: each.topic_id)
    return shown


def _reply_of(token: Waiting) -> Any:
    assert token.answered, "not answered"
    if isinstance(token.reply, Refused):
        raise token.reply
    return token.reply


def _partitions(topics: Any, image: Image) -> str:
    return _named_partitions((image.names.get(each.topic_id, "?"), each.partitions) for each in topics)


def _named_partitions(topics: Any) -> str:
    return " ".join(f"{name}:{','.join(map(str, sorted(at)))}" for name, at in sorted(topics))


def _read_partitions(text: str | None) -> list[tuple[str, list[int]]]:
    """`t:0,1+u:2`"""
    return [
        (name, [int(number) for number in at.split(",")])
        for name, _, at in (part.partition(":") for part in (text or "").split("+"))
        if name
    ]
