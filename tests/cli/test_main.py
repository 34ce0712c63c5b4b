"""The command line as a whole: what it loads, and how it refuses."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from ottla import __version__
from ottla.cli.main import NOUNS, cli


def ottla(*arguments, **environment):
    return CliRunner(env=environment).invoke(cli, arguments, prog_name="ottla")


def test_the_version_is_told():
    assert ottla("--version").output == f"ottla {__version__}\n"


def test_every_command_is_listed_with_what_it_does():
    output = ottla("--help").output
    for name, noun in NOUNS.items():
        assert name in output
        assert noun.help in output


@pytest.mark.parametrize("name", NOUNS)
def test_every_command_explains_itself(name):
    result = ottla(name, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: ottla {name}")


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
    assert not loaded & {"rich", "pyarrow", "asyncio", "ssl", "difflib", "json", "ottla.client", "dataclasses"}


def test_help_loads_no_command():
    assert not {name for name in loaded_by("--help") if name.startswith(("ottla.cli.s", "ottla.cli.t", "ottla.config"))}


def test_the_module_runs_as_the_command_does():
    done = subprocess.run([sys.executable, "-m", "ottla", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"ottla {__version__}\n"
