"""`ottla`: the table of commands. A command's module is imported when the command runs, and not before."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from ottla import __version__
from ottla.cli.failure import Suggesting, TerseErrors

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Noun(NamedTuple):
    """A row of the table: the module has an attribute `command`."""

    module: str
    help: str


NOUNS: Final = {
    "serve": Noun("ottla.cli.serve", "Run a broker."),
    "dev": Noun("ottla.cli.dev", "Run a cluster on this machine: watch it, break it."),
    "drill": Noun("ottla.cli.drill", "Lessons: break a small cluster on purpose, and check the outcome."),
    "pipeline": Noun("ottla.cli.pipeline", "Pipelines on Spark: sources, SQL and sinks in a YAML file."),
    "simulate": Noun("ottla.cli.simulate", "Simulate clusters on a virtual clock, with faults, and check them."),
    "cluster": Noun("ottla.cli.cluster", "Show brokers, controller, disks, under-replicated and offline partitions."),
    "topics": Noun("ottla.cli.topics", "Create, list, describe, alter, delete topics; plan one."),
    "produce": Noun("ottla.cli.produce", "Write records, from standard input or files."),
    "consume": Noun("ottla.cli.consume", "Read records and print them."),
    "groups": Noun("ottla.cli.groups", "Consumer groups: members, lag, offsets."),
    "configs": Noun("ottla.cli.configs", "Settings of topics, brokers and groups."),
    "reassign": Noun("ottla.cli.reassign", "Move partitions to other brokers."),
    "elect": Noun("ottla.cli.elect", "Elect preferred leaders, or (unclean) any live replica."),
    "transactions": Noun("ottla.cli.transactions", "Show transactions, and abort a hanging one."),
    "bench": Noun("ottla.cli.bench", "Measure any Kafka-compatible cluster."),
    "kafka-scripts": Noun(
        "ottla.cli.kafka_scripts_command", "Write kafka-topics.sh and the other scripts into a directory."
    ),
    "log": Noun("ottla.cli.log", "Print, verify and repair the files of a broker."),
    "zookeeper": Noun("ottla.cli.zookeeper", "Run a ZooKeeper ensemble, for development and tests."),
    "completion": Noun("ottla.cli.completion", "Completion for bash, zsh and fish."),
}


class LazyGroup(TerseErrors, Suggesting):
    """A group that lists its commands from the table, and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        noun = NOUNS.get(cmd_name)
        if noun is None:
            return None
        command = import_module(noun.module).command
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the table: completion imports no command."""
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=noun.help) for name, noun in NOUNS.items() if name.startswith(incomplete)
        ] or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, noun.help) for name, noun in NOUNS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ottla", message="%(prog)s %(version)s")
def cli() -> None:
    """A Kafka-compatible broker, and the tools to use it."""


def main() -> None:
    cli(prog_name="ottla")
