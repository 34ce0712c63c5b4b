"""The command line as a whole: help, imports, suggestions, errors."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ottla import __version__
from ottla.cli.main import NOUNS, cli
from ottla.cli.output import alarming, print_table


def ottla(*arguments, **environment):
    return CliRunner(env=environment).invoke(cli, arguments, prog_name="ottla")


def test_the_version_is_printed():
    assert ottla("--version").output == f"ottla {__version__}\n"


def test_help_lists_every_command():
    output = " ".join(ottla("--help").output.split())
    for name, noun in NOUNS.items():
        assert name in output
        assert noun.help in output


@pytest.mark.parametrize("name", NOUNS)
def test_every_command_has_help(name):
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


def test_the_examples_in_help_are_valid():
    for path, command in every_command():
        words = " ".join(path)
        help_text = ottla(*path, "--help").output
        assert "Example:" in help_text, words
        assert re.search(rf"ottla {path[0]}\b", help_text.partition("Example:")[2]), words
        assert command.help, words


def test_commands_that_talk_to_a_cluster_have_the_same_options():
    commands = [
        (path, command)
        for path, command in every_command()
        if any(parameter.name == "bootstrap" for parameter in command.params)
    ]
    assert len(commands) > 25
    for path, command in commands:
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert {"-b", "--bootstrap-server", "-X"} <= flags, path
        assert "--json" in flags, path


def test_every_command_has_json_output():
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
    assert completed("ottla topics de").splitlines() == [
        "plain,delete",
        "plain,delete-records",
        "plain,describe",
    ]
    here = {"OTTLA_BOOTSTRAP_SERVERS": broker.bootstrap}
    assert completed("ottla consume completed-t", **here) == "plain,completed-topic\n"
    assert completed("ottla consume completed-t", OTTLA_BOOTSTRAP_SERVERS="127.0.0.1:1").strip() == ""


def test_colours_are_printed_on_terminals_only():
    table = [("T", "LAG"), ("orders", alarming(5, True))]
    for colours in (False, True):
        out = CliRunner().invoke(click.command()(lambda: print_table(table[0], table[1:])), color=colours).output
        assert ("\x1b[" in out) is colours
        assert click.unstyle(out) == "T       LAG\norders  5\n"


def test_a_mistyped_command_is_refused_with_a_suggestion():
    result = ottla("topic")
    assert result.exit_code == 2
    assert "Did you mean 'topics'?" in result.output
    for typed, meant in {"topics descrbe": "describe", "groups reset": "reset-offsets", "dev kil": "kill"}.items():
        assert f"Did you mean {meant!r}?" in ottla(*typed.split()).output


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


def test_serve_imports_nothing_it_does_not_need():
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


def test_help_imports_no_command():
    assert not {name for name in loaded_by("--help") if name.startswith(("ottla.cli.s", "ottla.cli.t", "ottla.config"))}


def test_python_m_ottla_is_the_command():
    done = subprocess.run([sys.executable, "-m", "ottla", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"ottla {__version__}\n"


def as_a_process(*arguments, out=subprocess.PIPE, path=(), bootstrap="127.0.0.1:1"):
    """`ottla` as it is started in a shell; `path` goes before what is installed."""
    found = os.pathsep.join(filter(None, (*map(str, path), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": found, "OTTLA_BOOTSTRAP_SERVERS": bootstrap}
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.run(
        [sys.executable, "-m", "ottla", *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.fixture
def without_extras(tmp_path):
    """In front of the path, a directory where the packages of extras cannot be found."""
    directory = tmp_path / "missing"
    directory.mkdir()
    for name in ("yaml", "fastavro", "numpy", "pyarrow", "pyspark"):
        (directory / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name={name!r})\n")
    return directory


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (("pipeline", "validate", "FILE"), "yaml", "spark"),
        (("pipeline", "validate", "FILE", "--json"), "yaml", "spark"),
        (("pipeline", "explain", "FILE"), "yaml", "spark"),
        (("pipeline", "run", "FILE"), "yaml", "spark"),
        (("consume", "TOPIC", "--value-format", "avro", "--registry", "http://127.0.0.1:1", "-e"), "fastavro", "avro"),
        (("bench", "consume", "TOPIC", "--arrow"), "numpy", "arrow"),
    ],
)
def test_a_missing_module_is_named_with_its_extra(
    broker, fresh_name, without_extras, tmp_path, arguments, module, extra
):
    topic = fresh_name()
    ottla("topics", "create", topic, "-b", broker.bootstrap)
    named = {"FILE": tmp_path / "pipeline.yaml", "TOPIC": topic}
    as_a_process("pipeline", "init", named["FILE"])
    done = as_a_process(
        *(named.get(each, each) for each in arguments), path=[without_extras], bootstrap=broker.bootstrap
    )
    assert done.returncode == 1
    assert done.stderr == f"ottla: error: this needs the module {module}\n  pip install 'ottla[{extra}]'\n"


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    file = tmp_path / "a-file"
    file.write_text("")
    as_a_process("pipeline", "init", tmp_path / "good.yaml")
    nowhere = tmp_path / "nowhere"
    for arguments, said in (
        (("dev", "--data", file), f"{file}: File exists"),
        (("dev", "--data", file / "below"), f"{file / 'below'}: Not a directory"),
        (("pipeline", "init", nowhere / "x.yaml"), f"{nowhere / 'x.yaml'}: No such file or directory"),
        (
            ("pipeline", "explain", tmp_path / "good.yaml", "--svg", nowhere / "g.svg"),
            f"{nowhere / 'g.svg'}: No such file or directory",
        ),
    ):
        done = as_a_process(*arguments)
        assert (done.returncode, done.stderr) == (1, f"ottla: error: {said}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_output_that_cannot_be_written_is_reported_in_one_line(broker, fresh_name):
    topic = fresh_name()
    ottla("topics", "create", topic, "-b", broker.bootstrap)
    CliRunner().invoke(cli, ["produce", topic, "-b", broker.bootstrap], input="one\n")
    for arguments in (("--help",), ("topics", "list"), ("consume", topic, "-e")):
        with open("/dev/full", "w") as full:
            done = as_a_process(*arguments, out=full, bootstrap=broker.bootstrap)
        assert (done.returncode, done.stderr) == (1, "ottla: error: standard output: No space left on device\n")


def test_a_closed_pipe_ends_a_command_silently():
    reading, writing = os.pipe()
    os.close(reading)
    done = as_a_process("--help", out=writing)
    os.close(writing)
    assert done.stderr == ""
