"""Replicas that fail one after the other, and what is left when they come back.

The topic is `notes`, one partition on brokers 1, 2 and 3, led by 1. Broker 4 has none of it: it is there to be asked
when the other three are gone.
"""

from __future__ import annotations

import shutil

from ottla.drills.stage import Stage

TOPIC = "notes"
HOLDERS = (1, 2, 3)
FIRST = 100
UNCLEAN = {"unclean.leader.election.enable": "true"}


async def _three_replicas(stage: Stage, configs: dict[str, str] | None = None) -> None:
    await stage.probe.create(TOPIC, [HOLDERS], configs=configs)
    stage.say(f"Topic {TOPIC} has one partition, kept on brokers 1, 2 and 3.")
    await stage.led_by(TOPIC, 1)
    await stage.in_sync(TOPIC, HOLDERS)
    await stage.write(TOPIC, FIRST)


async def replica_fails(stage: Stage) -> None:
    await _three_replicas(stage)
    stage.kill(3)
    await stage.in_sync(TOPIC, (1, 2))
    stage.say("Writing goes on. Broker 3 does not get any of it, and falls further and further behind:")
    for _ in range(3):
        await stage.write(TOPIC, FIRST)
        behind = len(stage.acknowledged[TOPIC, 0]) - len(stage.on_disk(3, TOPIC))
        stage.say(f"  broker 3 is {behind} records behind")
    stage.check(behind == 3 * FIRST, f"broker 3 lacks all {3 * FIRST} records written since it failed", behind)
    await stage.nothing_lost(TOPIC)


async def two_replicas_fail(stage: Stage) -> None:
    await _three_replicas(stage)
    stage.kill(3)
    await stage.in_sync(TOPIC, (1, 2))
    await stage.write(TOPIC, FIRST)
    stage.kill(2)
    await stage.in_sync(TOPIC, (1,))
    stage.say("There is still one in-sync replica, even though it is the leader: writing goes on.")
    await stage.write(TOPIC, FIRST)
    await stage.nothing_lost(TOPIC)


async def _all_fail(stage: Stage, configs: dict[str, str] | None = None) -> None:
    """Broker 3 misses two thirds of the records, broker 2 one third, broker 1 none; then all three are down."""
    await _three_replicas(stage, configs)
    stage.kill(3)
    await stage.in_sync(TOPIC, (1, 2))
    await stage.write(TOPIC, FIRST)
    stage.kill(2)
    await stage.in_sync(TOPIC, (1,))
    await stage.write(TOPIC, FIRST)
    stage.kill(1)
    await stage.led_by(TOPIC, -1)
    for broker_id, has in ((1, 3 * FIRST), (2, 2 * FIRST), (3, FIRST)):
        found = len(stage.on_disk(broker_id, TOPIC))
        stage.check(found == has, f"broker {broker_id} has {has} of the {3 * FIRST} records on its disk", found)


async def leader_fails_last(stage: Stage) -> None:
    await _all_fail(stage)
    stage.say("Three replicas are dead; the fourth broker knows the topic and has none of it.")
    await stage.refused(TOPIC)


async def recover_clean(stage: Stage) -> None:
    await _all_fail(stage)
    stage.say("Recovery, the careful way: wait for the leader, which alone has everything.")
    await stage.restart(3)
    await stage.restart(2)
    await stage.refused(TOPIC)
    await stage.led_by(TOPIC, -1)
    await stage.restart(1)
    await stage.led_by(TOPIC, 1)
    await stage.write(TOPIC, FIRST)
    stage.say("The other two are brought back in sync.")
    await stage.in_sync(TOPIC, HOLDERS)
    await stage.nothing_lost(TOPIC)
    await stage.same_logs(TOPIC, HOLDERS)


async def recover_unclean(stage: Stage) -> None:
    await _all_fail(stage, UNCLEAN)
    stage.say("Recovery, the quick way (unclean.leader.election.enable): whoever comes back first is elected.")
    await stage.restart(3)
    await stage.led_by(TOPIC, 3)
    kept = stage.acknowledged[TOPIC, 0][:FIRST]
    stage.say(f"What was written between its death and its election is lost: {2 * FIRST} records.")
    stage.acknowledged[TOPIC, 0] = kept
    await stage.nothing_lost(TOPIC)
    await stage.write(TOPIC, FIRST)
    stage.say("Brokers 1 and 2 come back. Their logs go another way from record 100 on, which they cut off.")
    await stage.restart(1)
    await stage.restart(2)
    await stage.in_sync(TOPIC, HOLDERS)
    await stage.same_logs(TOPIC, HOLDERS)
    await stage.nothing_lost(TOPIC)


async def start_from_zero(stage: Stage) -> None:
    await _all_fail(stage, UNCLEAN)
    stage.say("The worst of the quick way: the broker that comes back first does so with an empty disk.")
    shutil.rmtree(stage.cluster[3].data)
    await stage.restart(3)
    await stage.led_by(TOPIC, 3)
    stage.acknowledged[TOPIC, 0] = []
    await stage.nothing_lost(TOPIC)
    stage.say("The log starts from zero.")
    await stage.write(TOPIC, 10)
    await stage.restart(1)
    await stage.restart(2)
    await stage.in_sync(TOPIC, HOLDERS)
    await stage.same_logs(TOPIC, HOLDERS)
    await stage.nothing_lost(TOPIC)


async def eligible_leader(stage: Stage) -> None:
    await _three_replicas(stage, {"min.insync.replicas": "2"})
    stage.say("Every acknowledged record must be on two replicas (min.insync.replicas=2).")
    await stage.stop(3)
    await stage.in_sync(TOPIC, (1, 2))
    await stage.write(TOPIC, FIRST)
    await stage.stop(2)
    await stage.in_sync(TOPIC, (1,))
    stage.say("One in-sync replica is not enough to acknowledge: nothing can be promised that broker 2 does not have.")
    await stage.refused(TOPIC)
    stage.kill(1)
    await stage.led_by(TOPIC, -1)
    stage.say("Broker 2 left the in-sync set, but has every acknowledged record and stopped cleanly: it is eligible.")
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
    stage.say(f"Topic {TOPIC} has three partitions, one on each broker, and no copies.")
    for partition in range(3):
        await stage.write(TOPIC, FIRST, partition)
    stage.kill(2)
    shutil.rmtree(stage.cluster[2].data)
    stage.say("Its disk is gone with it.")
    await stage.led_by(TOPIC, -1, partition=1)
    await stage.refused(TOPIC, partition=1)
    for partition in (0, 2):
        await stage.nothing_lost(TOPIC, partition)
    await stage.restart(2)
    await stage.led_by(TOPIC, 2, partition=1)
    found = await stage.read(TOPIC, 1)
    stage.check(found == [], f"it comes back with an empty disk: all {FIRST} records of {TOPIC}-1 are lost", found)
