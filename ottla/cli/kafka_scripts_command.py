"""`ottla kafka-scripts`: write the scripts of Apache Kafka's `bin`, run by Ottla's client, into a directory."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from ottla.cli.failure import Misused
from ottla.cli.kafka_scripts import SCRIPTS
from ottla.cli.output import answer, json_option

MARK = "done by Ottla's client"
TEXT = """#!/bin/sh
# What Apache Kafka's script of this name does, {mark}.
exec {python} -m ottla.cli.kafka_scripts {name} "$@"
"""


@click.command("kafka-scripts")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@json_option
def command(directory: Path, as_json: bool) -> None:
    """Write kafka-topics.sh, kafka-consumer-groups.sh and the other scripts into DIRECTORY.

    They have the options and the output of Apache Kafka's scripts. A file that is not one of these is not overwritten.

    \b
    Example:
      ottla kafka-scripts ~/bin
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        path = directory / name
        if path.exists() and MARK not in path.read_text(errors="replace"):
            raise Misused(f"{path} exists already, and is not Ottla's", hint="Choose another directory.")
    for name in SCRIPTS:
        path = directory / name
        path.write_text(TEXT.format(mark=MARK, python=shlex.quote(sys.executable), name=name))
        path.chmod(0o755)
    written = [str(directory / name) for name in SCRIPTS]
    answer(as_json, {"written": written}, "\n".join(written))
