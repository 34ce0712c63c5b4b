"""The command line as a whole: what it loads, and how it refuses."""

import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from ottla import __version__
from ottla.cli.main import NOUNS, cli
from ottla.cli.output import alarming, print_table


def ottla(*arguments, **environment):
    return CliRunner(env=environment).invoke(cli, arguments, prog_name="ottla")


def test_the_version_is_told():
    assert ottla("--version").output == f"ottla {__version__}\n"


def test_every_command_is_listed_with_what_it_does():
    output = " ".join(ottla("--help").output.split())
    for name, noun in NOUNS.items():
        assert name in output
        assert noun.help in output


@pytest.mark.parametrize("name", NOUNS)
def test_every_command_explains_itself(name):
    result = ottla(name, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: ottla {name}")


def every_command(command=cli, path=()):
    """Each with the words that call it, groups included."""
    if path:
        yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from every_command(command.get_command(context, name), (*path, name))


def test_every_command_has_an_example_that_it_understands():
    for path, command in every_command():
        words = " ".join(path)
        help_text = ottla(*path, "--help").output
        assert "Example:" in help_text, words
        assert re.search(rf"ottla {path[0]}\b", help_text.partition("Example:")[2]), words
        assert command.help, words


def test_commands_that_ask_a_cluster_all_take_the_same_options():
    asking = [
        (path, command)
        for path, command in every_command()
        if any(parameter.name == "bootstrap" for parameter in command.params)
    ]
    assert len(asking) > 25
    for path, command in asking:
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert {"-b", "--bootstrap-server", "-X"} <= flags, path
        assert "--json" in flags, path


def test_every_answer_can_be_had_as_json():
    for path, command in every_command():
        if not isinstance(command, click.Group):
            assert "--json" in {flag for parameter in command.params for flag in parameter.opts}, path
    assert "_OTTLA_COMPLETE" in json.loads(ottla("completion", "bash", "--json").output)["script"]


def test_a_shell_completes_commands_topics_and_groups(broker):
    script = ottla("completion", "bash").output
    assert "_OTTLA_COMPLETE" in script
    ottla("topics", "create", "completed-topic", "-b", broker.bootstrap)

    def completed(words, **environment):
        return ottla(
            COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1), _OTTLA_COMPLETE="bash_complete", **environment
        ).output

    assert completed("ottla to") == "plain,topics\n"
    assert completed("ottla topics de").splitlines() == ["plain,delete", "plain,describe"]
    here = {"OTTLA_BOOTSTRAP_SERVERS": broker.bootstrap}
    assert completed("ottla consume completed-t", **here) == "plain,completed-topic\n"
    assert completed("ottla consume completed-t", OTTLA_BOOTSTRAP_SERVERS="127.0.0.1:1").strip() == ""


def test_colours_are_for_terminals():
    table = [("T", "LAG"), ("orders", alarming(5, True))]
    for colours in (False, True):
        out = CliRunner().invoke(click.command()(lambda: print_table(table[0], table[1:])), color=colours).output
        assert ("\x1b[" in out) is colours
        assert click.unstyle(out) == "T       LAG\norders  5\n"


def test_a_mistyped_command_is_refused_with_a_suggestion():
    result = ottla("topic")
    assert result.exit_code == 2
    assert "Did you mean 'topics'?" in result.output


def loaded_by(*arguments):
    """The modules a command has imported when it is done."""
    script = f"""
import sys
from ottla.cli.main import cli
try:
    cli({list(arguments)!r}, prog_name="ottla")
except SystemExit:
    pass
print("\\0" + " ".join(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("\0")[2].split())


def test_serving_loads_nothing_it_does_not_need():
    loaded = loaded_by("serve", "--print-config")
    assert "ottla.config" in loaded
    assert not loaded & {
        "rich",
        "pyarrow",
        "asyncio",
        "ssl",
        "difflib",
        "json",
        "ottla.client",
        "dataclasses",
        "ottla.blocking",
    }


def test_help_loads_no_command():
    assert not {name for name in loaded_by("--help") if name.startswith(("ottla.cli.s", "ottla.cli.t", "ottla.config"))}


def test_the_module_runs_as_the_command_does():
    done = subprocess.run([sys.executable, "-m", "ottla", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"ottla {__version__}\n"
