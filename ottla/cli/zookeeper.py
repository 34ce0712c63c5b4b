"""`ottla zookeeper`: an Apache ZooKeeper ensemble on this machine, for development and tests."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.failure import Failure
from ottla.cli.output import json_option, print_json_line
from ottla.errors import Fault

if TYPE_CHECKING:
    from ottla.cluster.ensemble import Ensemble

LOOK_SECONDS = 0.5


@click.command("zookeeper")
@click.option("--nodes", type=click.Choice(["1", "3"]), default="1", show_default=True, help="Number of servers.")
@click.option("--data", metavar="DIR", default="zookeeper-data", show_default=True, help="Data directory.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65533),
    default=2181,
    show_default=True,
    help="Port of the first server, the others follow; 0 picks free ports.",
)
@click.option("--jars", metavar="DIR", help="ZooKeeper's jars.  [default: OTTLA_ZOOKEEPER_JARS, or those of PySpark]")
@json_option
def command(nodes: str, data: str, port: int, jars: str | None, as_json: bool) -> None:
    """Run a ZooKeeper ensemble until SIGTERM or Ctrl-C.

    It is Apache ZooKeeper, from the jars of PySpark, listening on this machine only. Brokers use it with --store
    zookeeper:HOST:PORT.

    \b
    Example:
      ottla zookeeper --nodes 3
    """
    from ottla.cluster.ensemble import Ensemble
    from ottla.runtime.disk import RealDisk

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    disk = RealDisk()
    try:
        disk.mkdir(data)
        lock = disk.lock(f"{data}/.lock")
        if lock is None:
            raise Fault(f"another ensemble is running on {data}. Stop it first, or use another --data.")
        ensemble = Ensemble(Path(data), int(nodes), port=port, jars=jars)
        sys.exit(_run(ensemble, stop, as_json=as_json))
    except Fault as fault:
        raise Failure(str(fault)) from None


def _run(ensemble: Ensemble, stop: threading.Event, *, as_json: bool) -> int:
    ensemble.start()
    try:
        if as_json:
            print_json_line({"ready": ensemble.connect})
        else:
            click.echo(f"ottla: zookeeper ready on {ensemble.connect}")
            click.echo(f"  try: ottla serve --store zookeeper:{ensemble.connect}", err=True)
        while not stop.wait(LOOK_SECONDS):
            for server in ensemble.servers:
                if not server.running:
                    raise Fault(f"a server has exited; its log ({server.log}) ends with:\n{server.last_words()}")
    finally:
        ensemble.stop()
    return 0
