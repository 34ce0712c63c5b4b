"""`ottla drill`: lessons on a small cluster that is broken on purpose, with every outcome checked."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ottla.cli.failure import Failure, Misused
from ottla.cli.output import answer, json_option, print_json
from ottla.errors import Fault

if TYPE_CHECKING:
    from ottla.drills.running import Player


@click.command("drill")
@click.argument("name", required=False)
@click.option("--lecture", is_flag=True, help="Play all drills in order, from NAME on; a key press starts each.")
@click.option("--jars", metavar="DIR", help="ZooKeeper's jars.  [default: OTTLA_ZOOKEEPER_JARS, or those of PySpark]")
@json_option
def command(name: str | None, lecture: bool, jars: str | None, as_json: bool) -> None:
    """Show on a small cluster what the course texts say about Kafka: in words and pictures, every outcome checked.

    Without a name, list the drills in the order of the lecture. Exit status: 0 if every check passed, 1 otherwise. A
    drill has its own brokers, ports and files, and removes them at the end.

    \b
    Example:
      ottla drill recover-clean
      ottla drill --lecture
    """
    from ottla.drills.catalogue import DRILLS

    if name is not None and name not in DRILLS:
        raise Misused(f"there is no drill {name!r}", hint=f"The drills are: {', '.join(DRILLS)}")
    if lecture and as_json:
        raise Misused("--lecture has no JSON output", hint="Leave out --json, or name one drill.")
    if name is None and not lecture:
        _list(as_json)
        return
    signal.signal(signal.SIGTERM, _interrupt)
    if lecture:
        _lecture(name, jars)
        return
    assert name is not None
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
    from ottla.drills.catalogue import CHAPTERS, DRILLS

    value = [
        {
            "drill": name,
            "title": drill.title,
            "chapter": chapter,
            "text": drill.quote.text,
            "sentence": drill.quote.sentence,
            "requirements": [f"S{number}" for number in drill.quote.requirements],
            "term": drill.term,
        }
        for chapter, drills in CHAPTERS.items()
        for name, drill in drills.items()
    ]
    width = max(map(len, DRILLS))
    lines = []
    for chapter, drills in CHAPTERS.items():
        lines += [chapter, *(f"  {name:<{width}}  {drill.title}" for name, drill in drills.items())]
    lines.append("ottla drill NAME plays one, ottla drill --lecture all of them, a key press each.")
    answer(as_json, value, "\n".join(lines))


def _play(name: str, said: Callable[[str], None], jars: str | None) -> None:
    from ottla.drills.running import Player

    player = Player(said, jars=jars)
    try:
        _play_on(player, name)
    finally:
        player.close()


def _play_on(player: Player, name: str) -> None:
    from ottla.client.errors import ClientError
    from ottla.drills.stage import CheckFailed

    try:
        asyncio.run(player.play(name))
    except CheckFailed as failed:
        raise Failure(f"drill {name} failed", hint=str(failed)) from None
    except (Fault, ClientError) as fault:
        raise Failure(str(fault)) from None
    except KeyboardInterrupt:
        player.close()
        sys.exit(130)


def _lecture(first: str | None, jars: str | None) -> None:
    """All drills from `first` on; names the drills that this machine cannot play before the first one starts."""
    from ottla.drills.catalogue import CHAPTERS, DRILLS
    from ottla.drills.running import Player, missing

    lacking = {name: reasons for name, drill in DRILLS.items() if (reasons := missing(drill, jars))}
    for reason in dict.fromkeys(reason for reasons in lacking.values() for reason in reasons):
        without = [name for name, reasons in lacking.items() if reason in reasons]
        click.echo(f"Left out: {', '.join(without)}. Reason: {reason}")
    names = list(DRILLS)
    names = [name for name in names[names.index(first) if first else 0 :] if name not in lacking]
    chapter_of = {name: chapter for chapter, drills in CHAPTERS.items() for name in drills}
    player = Player(click.echo, jars=jars)
    try:
        for number, name in enumerate(names, 1):
            begins = number == 1 or chapter_of[name] != chapter_of[names[number - 2]]
            if begins:
                click.echo(click.style(f"\n{chapter_of[name]}", bold=True))
            click.echo(f"\n{number} of {len(names)}: {name}. {DRILLS[name].title}")
            if not _wanted():
                return
            _play_on(player, name)
    finally:
        player.close()
    click.echo(f"\nThe end: {len(names)} drills, and every check passed.")


def _wanted() -> bool:
    """Wait for a key; `q` ends the lecture. Without a keyboard all drills are played."""
    if not sys.stdin.isatty():
        return True
    from ottla.cli.keys import pressed_key

    try:
        key = pressed_key("  press a key to play it, q to end")
    except KeyboardInterrupt:
        key = "q"
    click.echo("\r\033[K", nl=False)
    return key not in ("q", "\x03", "\x04")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
