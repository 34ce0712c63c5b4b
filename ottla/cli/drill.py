"""`ottla drill`: break a small cluster in a certain way, and check what becomes of it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

import click

from ottla.cli.failure import Failure, Misused
from ottla.cli.output import json_option, print_json
from ottla.errors import Fault


@click.command("drill")
@click.argument("name", required=False)
@click.option("--jars", metavar="DIR", help="ZooKeeper's jars.  [default: OTTLA_ZOOKEEPER_JARS, or those of PySpark]")
@json_option
def command(name: str | None, jars: str | None, as_json: bool) -> None:
    """Break a small cluster in a certain way, told in plain words, and check the outcome.

    Without a name, list the drills. The status is 0 when everything was as it must be, and 1 otherwise. A drill has its
    own brokers, ports and files, and leaves nothing behind.

    \b
    Example:
      ottla drill recover-clean
    """
    from ottla.drills.catalogue import DRILLS

    if name is None:
        _list(as_json)
        return
    if name not in DRILLS:
        raise Misused(f"there is no drill {name!r}", hint=f"The drills are: {', '.join(DRILLS)}")
    signal.signal(signal.SIGTERM, _interrupt)
    if not as_json:
        _play(name, click.echo, jars)
        return
    story: list[str] = []
    good = False
    try:
        _play(name, story.append, jars)
        good = True
    finally:
        print_json({"drill": name, "good": good, "story": story})


def _list(as_json: bool) -> None:
    from ottla.drills.catalogue import DRILLS

    if as_json:
        print_json([{"drill": name, "title": drill.title} for name, drill in DRILLS.items()])
        return
    width = max(map(len, DRILLS))
    for name, drill in DRILLS.items():
        click.echo(f"{name:<{width}}  {drill.title}")


def _play(name: str, said: Callable[[str], None], jars: str | None) -> None:
    from ottla.client.errors import ClientError
    from ottla.drills.catalogue import run
    from ottla.drills.stage import Differs

    try:
        asyncio.run(run(name, said, jars=jars))
    except Differs as differs:
        raise Failure(f"drill {name} failed", hint=str(differs)) from None
    except (Fault, ClientError) as fault:
        raise Failure(str(fault)) from None
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
