"""Drills about the high watermark (when a record is committed and visible) and about acks."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from ottla.drills import pictures
from ottla.drills.stage import LOOK_SECONDS, PATIENCE_SECONDS, Stage
from ottla.errors import ErrorCode

LEADER: Final = 1
FOLLOWERS: Final = (2, 3)
HOLDERS: Final = (1, 2, 3)
LEADER_ONLY: Final = 1
ALL: Final = -1
SHORT_SECONDS: Final = 1.0


async def high_watermark(stage: Stage) -> None:
    topic = "secrets"
    await _on_three(stage, topic)
    await stage.write(topic, 4)
    await stage.pause(*FOLLOWERS)
    given = await stage.probe.write_to(LEADER, topic, stage.next_values(2), acks=LEADER_ONLY)
    stage.check(given == (4, 6), f"the leader appends 2 records, acks=1: offsets 4 and 5 of {topic}-0", given)
    end = len(stage.on_disk(LEADER, topic))
    behind = [len(stage.on_disk(each, topic)) for each in FOLLOWERS]
    stage.check(behind == [4, 4], f"neither follower has them in its log of {topic}-0", behind)
    await stage.draw()
    stage.show(lambda: _marks(stage, topic))
    await stage.draw()
    high = await stage.probe.end(topic)
    stage.check((end, high) == (6, 4), f"{topic}-0: log end offset {end}, high watermark {high}", (end, high))
    seen = await stage.probe.read(topic)
    stage.check(
        isinstance(seen, list) and len(seen) == 4,
        f"a consumer sees offsets 0 to 3 of {topic}-0: offsets 4 and 5 are written, but not committed",
        seen,
    )
    stage.resume(*FOLLOWERS)
    await stage.until(
        f"the followers have fetched them: the high watermark of {topic}-0 is 6",
        lambda: stage.probe.end(topic),
        lambda high: high == 6,
    )
    seen = await stage.read(topic)
    stage.acknowledged[topic, 0] = seen
    stage.check(len(seen) == 6, f"they are committed, and a consumer sees offsets 0 to 5 of {topic}-0", len(seen))
    await stage.same_logs(topic, HOLDERS)


async def _on_three(stage: Stage, topic: str) -> None:
    await stage.create(topic, [HOLDERS])
    stage.show_replicas(topic)
    await stage.in_sync(topic, HOLDERS)


async def _marks(stage: Stage, topic: str) -> list[str]:
    """The leader's log, with its high watermark and log end offset."""
    high = await stage.probe.end(topic)
    end = len(stage.on_disk(LEADER, topic))
    return pictures.log(
        f"{topic}-0", end, {"log end offset": end} | ({"high watermark": int(high)} if high >= 0 else {})
    )


async def acks(stage: Stage) -> None:
    topic = "payments"
    stage.say("The text is older than Kafka 3.0: since then the default of acks is all, in Ottla, too.")
    await _on_three(stage, topic)
    await stage.write(topic, 3)
    await _acks_zero(stage, topic)
    stage.say(
        "acks=1: the leader acknowledges without its followers. Both are paused: only the first record may still reach "
        "them, in the response to a Fetch that they sent before."
    )
    await stage.pause(*FOLLOWERS)
    held = len(stage.acknowledged[topic, 0])
    for offset in (held, held + 1):
        given = await stage.probe.write_to(LEADER, topic, [f"acks=1, {offset}"], acks=LEADER_ONLY)
        stage.check(
            given == (offset, offset + 1), f"1 record acknowledged, acks=1: offset {offset} of {topic}-0", given
        )
        stage.acknowledged[topic, 0].append(f"acks=1, {offset}")
    await stage.draw()
    stage.say("acks=all: the leader waits for the in-sync replicas, and they are paused.")
    stage.probe.answer_seconds = SHORT_SECONDS
    given = await stage.probe.write_to(LEADER, topic, ["acks=all"], acks=ALL)
    stage.probe.answer_seconds = 5.0
    error = given.name.upper() if isinstance(given, ErrorCode) else given
    stage.check(
        given is ErrorCode.request_timed_out,
        f"the record for {topic}-0 is not acknowledged ({error}): it may be lost",
        error,
    )
    await stage.draw()
    await stage.kill(LEADER)
    stage.resume(*FOLLOWERS)
    await stage.led_by_other(topic, LEADER)
    left = len(await stage.read(topic))
    stage.check(left in (held, held + 1), "at most the first of the two records has reached a follower", left)
    await stage.some_lost(topic, left, "only the leader had it when it acknowledged (acks=1), and the leader died")
    stage.check(
        "acks=all" not in await stage.read(topic),
        "the record with acks=all is lost, too, but it was not acknowledged: its producer sends it again",
    )
    await stage.write(topic, 1)
    await stage.nothing_lost(topic)


async def _acks_zero(stage: Stage, topic: str) -> None:
    stage.say("acks=0: the producer sends, and does not wait for a response.")
    await stage.probe.send(LEADER, topic, "acks=0")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "acks=0" not in (found := await stage.read(topic)):
        if time.monotonic() > deadline:
            stage.check(False, "a record sent with acks=0 to the leader arrives", found[-1:])
        await asyncio.sleep(LOOK_SECONDS)
    stage.acknowledged[topic, 0].append("acks=0")
    stage.unanswered[topic, 0] = 1
    stage.check(True, f"1 record sent with acks=0: it is in {topic}-0, but the producer gets no response")
    await stage.draw()
    stage.say(f"A second record goes to broker 2, which does not lead {topic}-0: it drops it without a response.")
    await stage.probe.send(2, topic, "acks=0, lost")
    await stage.write(topic, 1)
    holders = [each for each in HOLDERS if "acks=0, lost" in stage.on_disk(each, topic)]
    stage.check(
        not holders, f"the record is in no log of {topic}-0: it is lost, and its producer does not know", holders
    )
