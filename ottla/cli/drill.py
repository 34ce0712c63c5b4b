"""`ottla drill`: break a small cluster in a certain way, and check what becomes of it."""

from __future__ import annotations

import asyncio
import signal
import sys

import click

from ottla.cli.failure import Failure, Misused
from ottla.errors import Fault


@click.command("drill")
@click.argument("name", required=False)
@click.option("--jars", metavar="DIR", help="ZooKeeper's jars.  [default: OTTLA_ZOOKEEPER_JARS, or those of PySpark]")
def command(name: str | None, jars: str | None) -> None:
    """Break a small cluster in a certain way, told in plain words, and check the outcome.

    Without a name, list the drills. The status is 0 when everything was as it must be, and 1 otherwise. A drill has its
    own brokers, ports and files, and leaves nothing behind.

    \b
    Example:
      ottla drill recover-clean
    """
    from ottla.client.errors import ClientError
    from ottla.drills.catalogue import DRILLS, run
    from ottla.drills.stage import Differs

    if name is None:
        width = max(map(len, DRILLS))
        for each, drill in DRILLS.items():
            click.echo(f"{each:<{width}}  {drill.title}")
        return
    if name not in DRILLS:
        raise Misused(f"there is no drill {name!r}", hint=f"The drills are: {', '.join(DRILLS)}")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        asyncio.run(run(name, click.echo, jars=jars))
    except Differs as differs:
        raise Failure(f"drill {name} failed", hint=str(differs)) from None
    except (Fault, ClientError) as fault:
        raise Failure(str(fault)) from None
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
