"""Drills about failing replicas: in-sync replicas, clean and unclean leader election.

The topic is `notes`, one partition on brokers 1, 2 and 3, led by 1. Broker 4 has no replica of it: it answers requests
while the other three are down.
"""

from __future__ import annotations

import shutil

from ottla.drills.stage import Stage

TOPIC = "notes"
HOLDERS = (1, 2, 3)
SPARE = 4
FIRST = 100
UNCLEAN = {"unclean.leader.election.enable": "true"}


async def _three_replicas(stage: Stage, configs: dict[str, str] | None = None) -> None:
    await stage.probe.create(TOPIC, [HOLDERS], configs=configs)
    stage.say(f"Topic {TOPIC} has one partition, {TOPIC}-0, with replicas on brokers 1, 2 and 3.")
    if SPARE in stage.cluster.brokers:
        stage.say(f"Broker {SPARE} has no replica of it and is not drawn: it answers while the others are down.")
    stage.show_replicas(TOPIC)
    await stage.led_by(TOPIC, 1)
    await stage.in_sync(TOPIC, HOLDERS)
    await stage.write(TOPIC, FIRST)


async def replica_fails(stage: Stage) -> None:
    await _three_replicas(stage)
    await stage.kill(3)
    await stage.in_sync(TOPIC, (1, 2))
    stage.say("Writes continue. Broker 3 does not get these records, and falls further and further behind the leader.")
    for _ in range(3):
        await stage.write(TOPIC, FIRST)
    missing = len(stage.acknowledged[TOPIC, 0]) - len(stage.on_disk(3, TOPIC))
    stage.check(
        missing == 3 * FIRST, f"broker 3 lacks all {3 * FIRST} records of {TOPIC}-0 written since it failed", missing
    )
    await stage.nothing_lost(TOPIC)


async def two_replicas_fail(stage: Stage) -> None:
    await _three_replicas(stage)
    await stage.kill(3)
    await stage.in_sync(TOPIC, (1, 2))
    await stage.write(TOPIC, FIRST)
    await stage.kill(2)
    await stage.in_sync(TOPIC, (1,))
    stage.say("One replica is still in sync, the leader itself: writes continue.")
    await stage.write(TOPIC, FIRST)
    await stage.nothing_lost(TOPIC)


async def _all_fail(stage: Stage, configs: dict[str, str] | None = None) -> None:
    """Broker 3 misses two thirds of the records, broker 2 one third, broker 1 none; then all three are down."""
    await _three_replicas(stage, configs)
    await stage.kill(3)
    await stage.in_sync(TOPIC, (1, 2))
    await stage.write(TOPIC, FIRST)
    await stage.kill(2)
    await stage.in_sync(TOPIC, (1,))
    await stage.write(TOPIC, FIRST)
    await stage.kill(1)
    await stage.led_by(TOPIC, -1)
    for broker_id, has in ((1, 3 * FIRST), (2, 2 * FIRST), (3, FIRST)):
        found = len(stage.on_disk(broker_id, TOPIC))
        stage.check(
            found == has, f"broker {broker_id} has {has} of {3 * FIRST} records of {TOPIC}-0 on its disk", found
        )


async def leader_fails_last(stage: Stage) -> None:
    await _all_fail(stage)
    state = await stage.probe.replicas(TOPIC)
    stage.check(
        state.in_sync == (1,),
        f"three replicas of {TOPIC}-0 are dead, and only broker 1 is in sync: it has every record",
        state.in_sync,
    )
    stage.say("Broker 4 runs and knows the topic, but has no replica of it.")
    await stage.refused(TOPIC)


async def recover_clean(stage: Stage) -> None:
    await _all_fail(stage)
    stage.say("Recovery A: wait for the last leader, the only broker with every record.")
    await stage.restart(3)
    await stage.restart(2)
    await stage.refused(TOPIC)
    await stage.led_by(TOPIC, -1)
    await stage.restart(1)
    await stage.led_by(TOPIC, 1)
    await stage.write(TOPIC, FIRST)
    stage.say("The other two catch up, and are in sync again.")
    await stage.in_sync(TOPIC, HOLDERS)
    await stage.nothing_lost(TOPIC)
    await stage.same_logs(TOPIC, HOLDERS)


async def recover_unclean(stage: Stage) -> None:
    await _all_fail(stage, UNCLEAN)
    had = {broker_id: stage.on_disk(broker_id, TOPIC) for broker_id in HOLDERS}
    stage.say("Recovery B (unclean.leader.election.enable=true): the first replica that comes back is elected.")
    await stage.restart(3)
    await stage.led_by(TOPIC, 3)
    await stage.some_lost(TOPIC, FIRST, "they were written after broker 3 had failed, and broker 3 is the leader now")
    await stage.write(TOPIC, FIRST)
    stage.say(f"These records have the offsets {FIRST} to {2 * FIRST - 1}, which the lost records had before.")
    stage.say(f"Brokers 1 and 2 come back. Their logs diverge from the leader's at offset {FIRST}: they truncate them.")
    await stage.restart(1)
    await stage.restart(2)
    await stage.in_sync(TOPIC, HOLDERS)
    await stage.same_logs(TOPIC, HOLDERS)
    await _truncated(stage, had, {1: 2 * FIRST, 2: FIRST})
    await stage.nothing_lost(TOPIC)


async def _truncated(stage: Stage, had: dict[int, list[str]], expected: dict[int, int]) -> None:
    for broker_id, count in expected.items():
        gone = stage.truncated(TOPIC, broker_id, had[broker_id])
        stage.check(
            gone == count,
            f"broker {broker_id} has truncated its log of {TOPIC}-0: {count} acknowledged records are deleted",
            gone,
        )


async def start_from_zero(stage: Stage) -> None:
    await _all_fail(stage, UNCLEAN)
    had = {broker_id: stage.on_disk(broker_id, TOPIC) for broker_id in HOLDERS}
    stage.say("The extreme of recovery B: the first replica that comes back has an empty disk.")
    shutil.rmtree(stage.cluster[3].data)
    await stage.restart(3)
    await stage.led_by(TOPIC, 3)
    await stage.some_lost(TOPIC, 0, "broker 3 is the leader now, and its disk was empty")
    stage.say(f"The log of {TOPIC}-0 starts from offset 0.")
    await stage.write(TOPIC, 10)
    await stage.restart(1)
    await stage.restart(2)
    await stage.in_sync(TOPIC, HOLDERS)
    await stage.same_logs(TOPIC, HOLDERS)
    await _truncated(stage, had, {1: 3 * FIRST, 2: 2 * FIRST})
    await stage.nothing_lost(TOPIC)


async def eligible_leader(stage: Stage) -> None:
    await _three_replicas(stage, {"min.insync.replicas": "2"})
    stage.say("An acknowledged record is on at least two replicas (min.insync.replicas=2).")
    await stage.stop(3)
    await stage.in_sync(TOPIC, (1, 2))
    await stage.write(TOPIC, FIRST)
    await stage.stop(2)
    await stage.in_sync(TOPIC, (1,))
    stage.say("One in-sync replica is fewer than min.insync.replicas: writes are refused, so broker 2 misses nothing.")
    await stage.refused(TOPIC)
    await stage.kill(1)
    await stage.led_by(TOPIC, -1)
    stage.say(
        "Broker 2 is out of sync. But no record was acknowledged since it left the in-sync replicas, so it has every "
        "acknowledged record: it is an eligible leader replica (ELR), and can be elected without loss."
    )
    await stage.restart(2)
    await stage.led_by(TOPIC, 2)
    await stage.restart(3)
    await stage.in_sync(TOPIC, (2, 3))
    await stage.nothing_lost(TOPIC)
    await stage.write(TOPIC, FIRST)
    await stage.restart(1)
    await stage.in_sync(TOPIC, HOLDERS)
    await stage.same_logs(TOPIC, HOLDERS)
    await stage.nothing_lost(TOPIC)


async def no_replication(stage: Stage) -> None:
    await stage.probe.create(TOPIC, [(1,), (2,), (3,)])
    stage.say(f"Topic {TOPIC} has three partitions with one replica each (replication factor 1), one on each broker.")
    stage.show_topics(TOPIC)
    for partition in range(3):
        await stage.write(TOPIC, FIRST, partition)
    await stage.kill(2)
    shutil.rmtree(stage.cluster[2].data)
    stage.say("Its disk is lost, too.")
    await stage.led_by(TOPIC, -1, partition=1)
    await stage.refused(TOPIC, partition=1)
    for partition in (0, 2):
        await stage.nothing_lost(TOPIC, partition)
    await stage.restart(2)
    await stage.led_by(TOPIC, 2, partition=1)
    await stage.some_lost(TOPIC, 0, "broker 2 had the only replica, and came back with an empty disk", partition=1)
