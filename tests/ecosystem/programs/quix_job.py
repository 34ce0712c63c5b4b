"""Quix Streams: numbers the records of each key, exactly once; runs until it is killed."""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application


def numbered(line: str, state: Any) -> str:
    count = state.get("count", 0) + 1
    state.set("count", count)
    return f"{line} {count}"


def main() -> None:
    bootstrap, source, target, directory = sys.argv[1:]
    app = Application(
        broker_address=bootstrap,
        consumer_group="quix",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=0.5,
        state_dir=directory,
        consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
        producer_extra_config={"transaction.timeout.ms": 10000},
    )
    lines = app.topic(source, key_deserializer="str", value_deserializer="str")
    numbers = app.topic(target, key_serializer="str", value_serializer="str")
    app.dataframe(lines).apply(numbered, stateful=True).to_topic(numbers)
    app.run()


if __name__ == "__main__":
    main()
