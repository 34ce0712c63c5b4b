"""`ottla`: the table of commands. A command's module is imported when the command runs, and not before."""

from __future__ import annotations

from importlib import import_module
from typing import Final, NamedTuple

import click

from ottla import __version__


class Noun(NamedTuple):
    """A row of the table: the module has an attribute `command`."""

    module: str
    help: str


NOUNS: Final = {
    "serve": Noun("ottla.cli.serve", "Run a broker."),
    "dev": Noun("ottla.cli.dev", "Run a cluster on this machine: watch it, break it."),
    "drill": Noun("ottla.cli.drill", "Break a small cluster on purpose, and check what becomes of it."),
    "simulate": Noun("ottla.cli.simulate", "Run whole clusters on a virtual clock, with faults, and check them."),
    "log": Noun("ottla.cli.log", "Look at the files of a broker: read them through for damage."),
    "topics": Noun("ottla.cli.topics", "Create, list, describe and delete topics."),
    "zookeeper": Noun("ottla.cli.zookeeper", "Run a ZooKeeper ensemble, for development and tests."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name, and imports the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        noun = NOUNS.get(cmd_name)
        if noun is None:
            return None
        command = import_module(noun.module).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], NOUNS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(error.message + hint, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, noun.help) for name, noun in NOUNS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ottla", message="%(prog)s %(version)s")
def cli() -> None:
    """A Kafka-compatible broker, and the tools to use it."""


def main() -> None:
    cli(prog_name="ottla")
