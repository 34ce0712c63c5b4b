"""The scripts of Apache Kafka's `bin` directory, with their options and output, run by Ottla's client.

Programs that parse the output of Kafka's scripts work with these. They are in `bin/` of the repository, and
`ottla kafka-scripts DIR` writes them into a directory; the package does not install them, because a machine may have
Kafka's own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import click

SCRIPTS: Final = {
    "kafka-topics.sh": "topics:kafka_topics",
    "kafka-console-producer.sh": "console_producer:console_producer",
    "kafka-console-consumer.sh": "console_consumer:console_consumer",
    "kafka-consumer-groups.sh": "consumer_groups:kafka_consumer_groups",
    "kafka-configs.sh": "configs:kafka_configs",
    "kafka-get-offsets.sh": "get_offsets:kafka_get_offsets",
    "kafka-reassign-partitions.sh": "reassign_partitions:kafka_reassign_partitions",
    "kafka-leader-election.sh": "leader_election:kafka_leader_election",
}
"""Module and command of each script. A module is imported when its script runs."""


def script(name: str) -> click.Command:
    module, _, attribute = SCRIPTS[name].partition(":")
    command = getattr(import_module(f"{__name__}.{module}"), attribute)
    assert isinstance(command, click.Command)
    return command


def main() -> None:
    """`python -m ottla.cli.kafka_scripts NAME ...`: what each script in `bin/` runs."""
    name = sys.argv[1] if sys.argv[1:] else ""
    if name not in SCRIPTS:
        click.echo(f"usage: python -m ottla.cli.kafka_scripts {{{'|'.join(SCRIPTS)}}} ...", err=True)
        sys.exit(2)
    script(name).main(sys.argv[2:], prog_name=name)
