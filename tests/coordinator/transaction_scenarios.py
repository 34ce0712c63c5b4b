"""Text scenarios for the transaction coordinator: what is done on the left, what is answered on the right.

    # a title
    p init                    -> 1:0                    producer id and epoch
    p init again              -> 1:1                    with the identity it has (KIP-360)
    p add t:0 t:1             -> none
    p verify t:0              -> none
    p commit                  -> 1:0                    the identity to go on with
    p abort v2                -> 1:1                    `v2`: the second version of the protocol
    state                     -> PrepareCommit 1:0 t:0 t:1
    markers                   -> commit 1:0 t:0 t:1     what waits to be written
    written                                             all of it is
    wait 60s · fail CODE · reload · forget · epoch 9    the log refuses the next record; another coordinator takes over;
                                                        unused ids are looked for; nine transactions later

Each client uses the transactional id `x` unless `id=` is given, and its last producer id and epoch unless
`as=1:0` does. `timeout=5s` goes with init. After each step the log is read again, whole and compacted.
"""

from __future__ import annotations

from ottla.coordinator.decision import Decision, LogRecord, ProducerIdAndEpoch
from ottla.coordinator.transaction_machine import (
    NEEDS_PRODUCER_ID,
    Markers,
    Prepared,
    TransactionLimits,
    TransactionMachine,
)
from ottla.coordinator.transaction_records import (
    TransactionKey,
    TransactionValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from ottla.errors import ErrorCode, Refused
from ottla.wire.topic_partition import TopicPartition
from tests.coordinator.consumer_scenarios import WALL_MS, scenarios

__all__ = ["TransactionScenario", "scenarios"]

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Token:
    def __init__(self) -> None:
        self.reply: object = None


class TransactionScenario:
    def __init__(self) -> None:
        self.now = 1000.0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.machine = TransactionMachine(self.limits)
        self.to_write: dict[Prepared, Markers] = {}
        self.identities: dict[str, ProducerIdAndEpoch] = {}
        self.failure: ErrorCode | None = None
        self.spare_id = 1

    def limits(self) -> TransactionLimits:
        return TransactionLimits(timeout_ms_max=900_000, id_expiration_ms=604_800_000)

    def run(self, lines: list[str]) -> None:
        for number, line in enumerate(lines, 1):
            text = line.partition("  #")[0].strip()
            if not text:
                continue
            acts, arrow, expected = (part.strip() for part in text.partition("->"))
            heard = ""
            for act in acts.split("·"):
                heard = self.act(act.split())
                self._check_log()
            if arrow:
                assert heard == " ".join(expected.split()), f"line {number}: {acts}"

    def act(self, words: list[str]) -> str:
        verb, *rest = words
        if verb in ("state", "markers", "written", "wait", "fail", "reload", "forget", "epoch"):
            return getattr(self, verb)(*rest) or ""
        names = [word for word in rest[1:] if "=" not in word]
        options = dict(word.split("=", 1) for word in rest[1:] if "=" in word)
        try:
            return getattr(self, f"do_{rest[0]}")(verb, names, options)
        except Refused as refused:
            return refused.code.name

    # What producers and leaders say.

    def do_init(self, client: str, names: list[str], options: dict[str, str]) -> str:
        expected = self._producer(client, options) if "again" in names or "as" in options else None
        timeout_ms = int(_seconds(options.get("timeout", "60s")) * 1000)

        def ask(token: Token, spare_id: int | None) -> Decision:
            return self.machine.init(
                options.get("id", "x"), timeout_ms, expected, token, self.now_ms, spare_id=spare_id
            )

        return self._answered(client, ask)

    def do_add(self, client: str, names: list[str], options: dict[str, str]) -> str:
        partitions = _partitions(name for name in names if name != "v2")
        token = Token()
        version = 2 if "v2" in names else 0
        self._apply(
            self.machine.add(
                options.get("id", "x"), self._producer(client, options), partitions, token, self.now_ms, version=version
            )
        )
        return self._codes(token)

    def do_verify(self, client: str, names: list[str], options: dict[str, str]) -> str:
        token = Token()
        self._apply(
            self.machine.verify(options.get("id", "x"), self._producer(client, options), _partitions(names), token)
        )
        return self._codes(token)

    def do_commit(self, client: str, names: list[str], options: dict[str, str]) -> str:
        return self._end(client, names, options, committed=True)

    def do_abort(self, client: str, names: list[str], options: dict[str, str]) -> str:
        return self._end(client, names, options, committed=False)

    def _end(self, client: str, names: list[str], options: dict[str, str], *, committed: bool) -> str:
        producer = self._producer(client, options)

        def ask(token: Token, spare_id: int | None) -> Decision:
            return self.machine.end(
                options.get("id", "x"),
                producer,
                token,
                self.now_ms,
                committed=committed,
                bumps="v2" in names,
                spare_id=spare_id,
            )

        return self._answered(client, ask, lost="lost" in names)

    def _answered(self, client, ask, *, lost: bool = False) -> str:
        """The identity that was told; `lost`: the answer did not arrive."""
        token = Token()
        self._apply(ask(token, None))
        if token.reply is NEEDS_PRODUCER_ID:
            token = Token()
            self._apply(ask(token, self.spare_id))
            self.spare_id += 1
        if isinstance(token.reply, Refused):
            raise token.reply
        assert isinstance(token.reply, ProducerIdAndEpoch)
        if not lost:
            self.identities[client] = token.reply
        return f"{token.reply.producer_id}:{token.reply.epoch}"

    def _codes(self, token: Token) -> str:
        if isinstance(token.reply, Refused):
            raise token.reply
        assert isinstance(token.reply, dict)
        codes = {code.name for code in token.reply.values()}
        if len(codes) == 1:
            return codes.pop()
        return " ".join(f"{topic}:{index}={code.name}" for (topic, index), code in sorted(token.reply.items()))

    def _producer(self, client: str, options: dict[str, str]) -> ProducerIdAndEpoch:
        if "as" in options:
            producer_id, _, epoch = options["as"].partition(":")
            return ProducerIdAndEpoch(int(producer_id), int(epoch))
        return self.identities[client]

    # What the shell does and sees.

    def state(self, transactional_id: str = "x") -> str:
        value = self.machine.get(transactional_id)
        if value is None:
            return "Dead"
        partitions = [f"{topic}:{index}" for topic, index in value.partitions]
        return " ".join([value.state.label, f"{value.producer_id}:{value.producer_epoch}", *partitions])

    def markers(self) -> str:
        return " · ".join(
            " ".join(
                [
                    "commit" if markers.committed else "abort",
                    f"{ticket.producer_id}:{ticket.producer_epoch}",
                    *(f"{topic}:{index}" for topic, index in markers.partitions),
                ]
            )
            for ticket, markers in self.to_write.items()
        )

    def written(self) -> None:
        for ticket in list(self.to_write):
            del self.to_write[ticket]
            self._apply(self.machine.complete(ticket, Token(), self.now_ms))

    def wait(self, word: str) -> None:
        end = self.now + _seconds(word)
        while (due := self.machine.deadline) is not None and due <= end:
            self.now = max(self.now, due)
            for decision in self.machine.expire(self.now, self.now_ms):
                self._apply(decision)
        self.now = end

    def fail(self, name: str) -> None:
        self.failure = ErrorCode[name]

    def reload(self) -> None:
        self.machine = self._read(self.log)
        self.to_write.clear()
        self._settle()

    def epoch(self, number: str) -> None:
        value = self.machine.get("x")
        assert value is not None
        later = value._replace(producer_epoch=int(number), last_epoch=-1)
        self._apply(Decision((LogRecord(TransactionKey("x"), later),)))

    def forget(self) -> None:
        for decision in self.machine.expire_ids(self.now_ms):
            self._apply(decision)

    # The shard.

    @property
    def now_ms(self) -> int:
        return WALL_MS + int(self.now * 1000)

    def _apply(self, decision: Decision) -> None:
        if decision.records and self.failure is not None:
            refused, self.failure = Refused(self.failure), None
            for token, _ in decision.replies:
                assert isinstance(token, Token)
                token.reply = refused
            return
        for key, value in decision.records:
            self.log.append((encode_key(key), None if value is None else encode_value(value)))
            self.machine.replay(key, value)
        for token, reply in decision.replies:
            if isinstance(token, Prepared):
                assert isinstance(reply, Markers)
                self.to_write[token] = reply
            else:
                assert isinstance(token, Token)
                assert token.reply is None, "answered twice"
                token.reply = reply
        if decision.records:
            self._settle()

    def _settle(self) -> None:
        for decision in self.machine.settle(self.now, self.now_ms):
            self._apply(decision)

    def _read(self, log: list[tuple[bytes, bytes | None]]) -> TransactionMachine:
        machine = TransactionMachine(self.limits)
        for raw_key, raw_value in log:
            key = decode_key(raw_key)
            assert key is not None
            machine.replay(key, None if raw_value is None else decode_value(key, raw_value))
        return machine

    def _check_log(self) -> None:
        there = dict(self.machine.items())
        assert dict(self._read(self.log).items()) == there
        assert dict(self._read(list(dict(self.log).items())).items()) == there
        for value in there.values():
            _check(value)


def _check(value: TransactionValue) -> None:
    assert value.producer_id > 0
    assert 0 <= value.producer_epoch < 2**15
    assert value.last_epoch < value.producer_epoch or value.producer_epoch == 0
    assert value.partitions == tuple(sorted(set(value.partitions)))


def _partitions(words) -> list[TopicPartition]:
    return [TopicPartition(topic, int(index)) for topic, _, index in (word.partition(":") for word in words)]


def _seconds(word: str) -> float:
    number = word.rstrip("hmsd")
    return float(number) * UNITS[word[len(number) :]]
