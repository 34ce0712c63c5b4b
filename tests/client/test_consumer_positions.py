"""Where a consumer reads on: after a seek, past records that cannot be read, in a topic that was made again."""

from __future__ import annotations

from typing import Any

from ottla.client.consumer import Consumer
from ottla.client.embedded import TopicPartition
from tests.client.clients import create, run, write
from tests.conftest import Served


async def filled(broker: Served, topic: str, values: list[bytes]) -> TopicPartition:
    await create(broker.bootstrap, topic)
    await write(broker.bootstrap, topic, values)
    return TopicPartition(topic, 0)


def test_a_seek_right_after_an_assignment_outweighs_what_was_committed(broker: Served, fresh_name):
    async def scenario() -> None:
        place = await filled(broker, fresh_name(), [b"v"] * 10)
        settings: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "group_id": place.topic}
        async with Consumer(enable_auto_commit=False, **settings) as consumer:
            consumer.assign([place])
            await consumer.commit({place: 8})
            consumer.assign([])
            consumer.assign([place])
            assert (await consumer.getone()).offset == 8
        async with Consumer(enable_auto_commit=False, **settings) as consumer:
            consumer.assign([place])
            consumer.seek(place, 2)
            assert (await consumer.getone()).offset == 2
        async with Consumer(enable_auto_commit=False, **settings) as consumer:
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            assert (await consumer.getone()).offset == 0

    run(scenario())
