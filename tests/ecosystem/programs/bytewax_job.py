"""Bytewax: numbers the records of each key, and ends with the last record."""

from __future__ import annotations

import sys

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSource, KafkaSourceMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.testing import cluster_main

BOOTSTRAP, SOURCE, TARGET = sys.argv[1:]


def numbered(count: int | None, message: KafkaSourceMessage) -> tuple[int, KafkaSinkMessage]:
    count = (count or 0) + 1
    return count, KafkaSinkMessage(message.key, message.value + f" {count}".encode())


flow = Dataflow("numbers")
lines = op.input("in", flow, KafkaSource(BOOTSTRAP.split(","), [SOURCE], tail=False))
keyed = op.key_on("key", lines, lambda message: message.key.decode())
numbers = op.map_value("value", op.stateful_map("number", keyed, numbered), lambda message: message)
kop.output("out", op.key_rm("plain", numbers), brokers=BOOTSTRAP.split(","), topic=TARGET)

if __name__ == "__main__":
    cluster_main(flow, [], 0, worker_count_per_proc=2)
