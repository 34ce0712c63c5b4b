"""`ottla kafka-scripts`: put Kafka's commands, done by Ottla's client, into a directory."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from ottla.cli.failure import Misused
from ottla.cli.kafka_scripts import SCRIPTS
from ottla.cli.output import json_option, print_json

MARK = "done by Ottla's client"
TEXT = """#!/bin/sh
# What Apache Kafka's script of this name does, {mark}.
exec {python} -m ottla.cli.kafka_scripts {name} "$@"
"""


@click.command("kafka-scripts")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@json_option
def command(directory: Path, as_json: bool) -> None:
    """Write kafka-topics.sh, kafka-consumer-groups.sh and their like into DIRECTORY.

    They take Kafka's options and print what Kafka's own print. A file that is there already and is not one of these is
    left alone.

    \b
    Example:
      ottla kafka-scripts ~/bin
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        path = directory / name
        if path.exists() and MARK not in path.read_text(errors="replace"):
            raise Misused(f"{path} is there already, and is not Ottla's", hint="Choose another directory.")
    for name in SCRIPTS:
        path = directory / name
        path.write_text(TEXT.format(mark=MARK, python=shlex.quote(sys.executable), name=name))
        path.chmod(0o755)
    if as_json:
        print_json({"written": [str(directory / name) for name in SCRIPTS]})
        return
    for name in SCRIPTS:
        click.echo(str(directory / name))
