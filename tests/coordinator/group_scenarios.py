"""Text scenarios for classic groups and their offsets: what is done on the left, every answer it releases on the right.

    # a title
    topics t=4
    a join                        -> a member_id_required      joins with range unless protocols are named
    a join                                                     and again, with the id it was told; `enter` does both
    wait 3s                       -> a joined 1 range leads a,b · b joined 1 range
    b sync                                                     nothing on the right: it waits
    a sync a=x b=y                -> b synced y · a synced x
    a beat                        -> a none
    group                         -> Stable 1 range a=x b=y
    a commit t:0=5 t:1=7          -> a none
    fetch t:0 t:1                 -> t:0=5 t:1=7               `fetch` alone: everything
    fail not_enough_replicas                                   the log refuses the next record
    reload                                                     another coordinator takes over, from the log

Options of `join`: as= (instance id), type=, session=, rebalance=, v= (version of the request), new (without the id it
has), meta= (metadata of all its protocols). Of all: id= (a member id), gen= (a generation). After each step the log is
read again, whole and compacted, and must give what there is.
"""

from __future__ import annotations

from typing import Any

from ottla.config import load_broker_config
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_group_data import ClassicGroupState
from ottla.coordinator.decision import Decision
from ottla.coordinator.group_context import MemberClient
from ottla.coordinator.group_machine import GroupMachine
from ottla.coordinator.group_records import GroupMetadataKey, decode_key, decode_value, encode_key, encode_value
from ottla.errors import ErrorCode, Refused
from ottla.wire import messages
from ottla.wire.schema.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.wire.schema.delete_groups import DeletableGroupResult
from ottla.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.schema.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.wire.schema.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.wire.schema.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from ottla.wire.schema.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.coordinator.consumer_scenarios import WALL_MS, Context, scenarios

__all__ = ["GroupScenario", "scenarios"]

GROUP = "g"
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Token:
    """A request of a member, by name."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.answered = False


class GroupScenario:
    def __init__(self) -> None:
        self.context = Context()
        self.now = 1000.0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.groups = GroupMachine(self.context)
        self.settings: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.instances: dict[str, str] = {}
        self.said: list[str] = []
        self.failure: ErrorCode | None = None
        self.behind = False
        """The log missed something: what became of the group without it is not durable until it is written again."""

    def run(self, lines: list[str]) -> None:
        for number, line in enumerate(lines, 1):
            text = line.partition("  #")[0].strip()
            if not text:
                continue
            acts, _, expected = (part.strip() for part in text.partition("->"))
            self.said = []
            for act in acts.split("·"):
                self.act(act.split())
            assert " · ".join(self.said) == " ".join(expected.split()), f"line {number}: {acts}"
            self._check_log()

    def token(self, member: str) -> Token:
        return Token(member)

    def act(self, words: list[str]) -> None:
        verb, *rest = words
        if hasattr(self, f"do_{verb}"):
            getattr(self, f"do_{verb}")(*rest)
            return
        member, verb = verb, rest[0]
        options = dict(word.split("=", 1) for word in rest[1:] if "=" in word)
        names = [word for word in rest[1:] if "=" not in word]
        token = self.token(member)
        try:
            self._apply(getattr(self, f"member_{verb}")(member, names, options, token))
        except Refused as refused:
            self._hear(token, refused)

    # The context.

    def do_topics(self, *words: str) -> None:
        from ottla.cluster import changes

        for word in words:
            name, _, count = word.partition("=")
            topic_id = f"{name}:{self.context.image.version}".encode().ljust(16, b"\0")
            created = changes.TopicCreated(topic_id, name, tuple((1,) for _ in range(int(count))), {})
            self.context.image = self.context.image.apply(created)

    def do_drop(self, name: str) -> None:
        from ottla.cluster import changes

        topic = self.context.image.topics[name]
        self.context.image = self.context.image.apply(changes.TopicDeleted(topic.id, name, ()))
        for decision in self.groups.forget_topic(name, topic.id):
            self._apply(decision)

    def do_set(self, word: str) -> None:
        name, _, value = word.partition("=")
        self.settings[name] = value
        self.context.config = load_broker_config(flags=self.settings)

    def do_wait(self, word: str) -> None:
        end = self.now + _seconds(word)
        while (due := self.groups.deadline) is not None and due <= end:
            self.now = max(self.now, due)
            for decision in self.groups.expire(self.now, self._now_ms):
                self._apply(decision)
        self.now = end

    def do_fail(self, code: str) -> None:
        self.failure = ErrorCode[code]

    def do_reload(self) -> None:
        for token in self.groups.pending_replies():
            self._hear(token, Refused(ErrorCode.not_coordinator))
        self.groups = GroupMachine(self.context)
        self.behind = False
        self._replay_into(self.groups, self.log)
        self._settle()

    def do_group(self) -> None:
        shown = self.groups.describe(GROUP)
        if shown.error_code:
            self.said.append(ErrorCode(shown.error_code).name)
            return
        group = self.groups.get(GROUP)
        assert isinstance(group, ClassicGroup)
        members = [f"{self._name(each.member_id)}={each.member_assignment.decode()}" for each in shown.members]
        words = [shown.group_state, str(group.generation), shown.protocol_data, *members]
        self.said.append(" ".join(word.removesuffix("=") for word in words if word))

    def do_list(self, *filters: str) -> None:
        options = dict(word.split("=", 1) for word in filters)
        states, types = ([each for each in options.get(key, "").split(",") if each] for key in ("states", "types"))
        listed = self.groups.list(states, types)
        self.said += [
            f"{each.group_id} {each.group_type} {each.group_state} {each.protocol_type or '-'}" for each in listed
        ]

    def do_fetch(self, *partitions: str) -> None:
        topics = None
        if partitions:
            wanted = [partition.split(":") for partition in partitions]
            topics = [OffsetFetchRequestTopics(name=name, partition_indexes=[int(at)]) for name, at in wanted]
        request = OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
        self._apply(self.groups.fetch_offsets(request, self.token("fetch"), stable=False))

    def do_expire_offsets(self) -> None:
        for decision in self.groups.expire_offsets(self._now_ms):
            self._apply(decision)

    def do_delete(self, what: str, *partitions: str) -> None:
        token = self.token("admin")
        try:
            if what == "group":
                self._apply(self.groups.delete(GROUP, token))
            else:
                topics = [
                    OffsetDeleteRequestTopic(
                        name=name, partitions=[OffsetDeleteRequestPartition(partition_index=int(index))]
                    )
                    for name, index in (partition.split(":") for partition in partitions)
                ]
                self._apply(self.groups.delete_offsets(OffsetDeleteRequest(group_id=GROUP, topics=topics), token))
        except Refused as refused:
            self._hear(token, refused)

    # A member.

    def member_join(self, member: str, names: list[str], options: dict[str, str], token: Token) -> Decision:
        if "as" in options:
            self.instances[member] = options["as"]
        new = "new" in names
        protocols = [name for name in names if name != "new"] or ["range"]
        metadata = options["meta"].encode() if "meta" in options else _subscription(options.get("topics", "t"))
        request = JoinGroupRequest(
            group_id=GROUP,
            member_id=options.get("id", "" if new else self.ids.get(member, "")),
            group_instance_id=self.instances.get(member),
            session_timeout_ms=int(_seconds(options.get("session", "10s")) * 1000),
            rebalance_timeout_ms=int(_seconds(options.get("rebalance", "60s")) * 1000),
            protocol_type=options.get("type", "consumer"),
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in protocols],
        )
        version = int(options.get("v", "9"))
        return self.groups.join(request, version, MemberClient(member, "/h"), token, self.now, self._now_ms)

    def member_enter(self, member: str, names: list[str], options: dict[str, str], token: Token) -> Decision:
        self._apply(self.member_join(member, [*names, "new"], options, self.token(member)))
        assert self.said.pop() == f"{member} member_id_required"
        return self.member_join(member, names, options, token)

    def member_sync(self, member: str, names: list[str], options: dict[str, str], token: Token) -> Decision:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self._generation(member, options),
            member_id=self._id(member, options),
            group_instance_id=self.instances.get(member),
            protocol_name=options.pop("protocol", None),
            assignments=[
                SyncGroupRequestAssignment(member_id=self.ids[name], assignment=text.encode())
                for name, text in options.items()
                if name in self.ids
            ],
        )
        return self.groups.sync(request, token, self.now, self._now_ms)

    def member_beat(self, member: str, names: list[str], options: dict[str, str], token: Token) -> Decision:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=self._generation(member, options),
            member_id=self._id(member, options),
            group_instance_id=self.instances.get(member),
        )
        return self.groups.heartbeat(request, token, self.now)

    def member_leave(self, member: str, names: list[str], options: dict[str, str], token: Token) -> Decision:
        """By itself, or with the members or instances that an administrator names."""
        members = [MemberIdentity(member_id=self._id(member, options), group_instance_id=self.instances.get(member))]
        if member == "admin":
            members = [MemberIdentity(member_id=self.ids[name]) for name in names]
            members += [MemberIdentity(group_instance_id=options["as"])] if "as" in options else []
        request = LeaveGroupRequest(group_id=GROUP, members=members)
        return self.groups.leave(request, token, self.now, self._now_ms)

    def member_commit(self, member: str, names: list[str], options: dict[str, str], token: Token) -> Decision:
        topics = [
            OffsetCommitRequestTopic(
                name=partition.partition(":")[0],
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=int(partition.partition(":")[2]),
                        committed_offset=int(offset),
                        committed_metadata=options.get("note"),
                    )
                ],
            )
            for partition, offset in options.items()
            if ":" in partition
        ]
        request = OffsetCommitRequest(
            group_id=GROUP,
            member_id="" if member == "admin" else self._id(member, options),
            generation_id_or_member_epoch=-1 if member == "admin" else self._generation(member, options),
            group_instance_id=self.instances.get(member),
            retention_time_ms=int(_seconds(options["keep"]) * 1000) if "keep" in options else -1,
            topics=topics,
        )
        version = int(options.get("v", "9"))
        return self.groups.commit_offsets(request, version, token, self.now, self._now_ms)

    def _id(self, member: str, options: dict[str, str]) -> str:
        return options.get("id", self.ids.get(member, ""))

    def _generation(self, member: str, options: dict[str, str]) -> int:
        return int(options.get("gen", self.generations.get(member, -1)))

    # What is heard.

    def _hear(self, token: object, reply: object) -> None:
        assert isinstance(token, Token)
        assert not token.answered, "answered twice"
        token.answered = True
        heard = self._heard(token.member, reply)
        self.said.append(heard if token.member == "fetch" else f"{token.member} {heard}")

    def _heard(self, member: str, reply: Any) -> str:
        match reply:
            case Refused():
                return reply.code.name
            case JoinGroupResponse():
                return self._heard_join(member, reply)
            case SyncGroupResponse():
                return f"synced {reply.assignment.decode()}".strip()
            case HeartbeatResponse() | DeletableGroupResult():
                return ErrorCode(reply.error_code).name
            case LeaveGroupResponse():
                return ",".join(ErrorCode(each.error_code).name for each in reply.members)
            case OffsetCommitResponse() | OffsetDeleteResponse():
                codes = {each.error_code for topic in reply.topics for each in topic.partitions}
                return ",".join(ErrorCode(code).name for code in sorted(codes))
            case OffsetFetchResponseGroup():
                return " ".join(_offset(topic.name, each) for topic in reply.topics for each in topic.partitions)
        raise AssertionError(reply)

    def _heard_join(self, member: str, reply: JoinGroupResponse) -> str:
        messages.encode(reply, 0)
        messages.encode(reply, 9)
        if reply.member_id:
            self.ids[member] = reply.member_id
        if reply.error_code:
            return ErrorCode(reply.error_code).name
        self.generations[member] = reply.generation_id
        words = ["joined", str(reply.generation_id), reply.protocol_name or "-"]
        if reply.leader == reply.member_id:
            words.append("leads")
        if reply.members:
            words.append(",".join(self._name(each.member_id) for each in reply.members))
        if reply.skip_assignment:
            words.append("skip")
        return " ".join(words)

    def _name(self, member_id: str) -> str:
        """Whose id it is. One that has not heard its id yet is known by its beginning."""
        start = member_id.partition("-")[0]
        holders = [member for member, instance in self.instances.items() if instance == start]
        return next((member for member, each in self.ids.items() if each == member_id), (holders or [start])[-1])

    # The shard.

    @property
    def _now_ms(self) -> int:
        return WALL_MS + int(self.now * 1000)

    def _apply(self, decision: Decision) -> None:
        if decision.records and self.failure is not None:
            refused, self.failure, self.behind = Refused(self.failure), None, True
            for token, _ in decision.replies:
                self._hear(token, refused)
            return
        for key, value in decision.records:
            pair = encode_key(key), None if value is None else encode_value(value)
            self.log.append(pair)
            self.behind = self.behind and not isinstance(key, GroupMetadataKey)
            self._replay_into(self.groups, [pair])
        for token, reply in decision.replies:
            self._hear(token, reply)
        self._settle()

    def _settle(self) -> None:
        for decision in self.groups.settle(self.now, self._now_ms):
            if decision.records or decision.replies:
                self._apply(decision)

    def _replay_into(self, groups: GroupMachine, log: list[tuple[bytes, bytes | None]]) -> None:
        for raw_key, raw_value in log:
            key = decode_key(raw_key)
            assert key is not None
            groups.replay(key, None if raw_value is None else decode_value(key, raw_value))

    def _check_log(self) -> None:
        newest: dict[bytes, bytes | None] = {}
        for key, value in self.log:
            newest.pop(key, None)
            newest[key] = value
        buried: list[tuple[bytes, bytes | None]] = [(key, value) for key, value in newest.items() if value is not None]
        for log in (self.log, list(newest.items()), buried):
            read = GroupMachine(self.context)
            self._replay_into(read, log)
            live, loaded = self.groups.get(GROUP), read.get(GROUP)
            settled = (
                isinstance(live, ClassicGroup)
                and live.state in (ClassicGroupState.EMPTY, ClassicGroupState.STABLE)
                and live.recorded
            )
            if settled and not self.behind:
                assert isinstance(live, ClassicGroup)
                assert isinstance(loaded, ClassicGroup)
                assert loaded.snapshot() == live.snapshot()
            request = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
            reported = [groups.fetch_offsets(request, None, stable=False).replies for groups in (self.groups, read)]
            assert reported[0] == reported[1]


def _subscription(topics: str) -> bytes:
    subscription = ConsumerProtocolSubscription(topics=topics.split(","))
    return bytes([0, 1]) + messages.encode(subscription, 1)


def _offset(name: str, partition: Any) -> str:
    note = f"({partition.metadata})" if partition.metadata else ""
    error = f"!{ErrorCode(partition.error_code).name}" if partition.error_code else ""
    return f"{name}:{partition.partition_index}={partition.committed_offset}{note}{error}"


def _seconds(text: str) -> float:
    unit = next(unit for unit in UNITS if text.endswith(unit))
    return float(text.removesuffix(unit)) * UNITS[unit]
