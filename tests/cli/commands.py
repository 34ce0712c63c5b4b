"""What tests of single commands share: a command run in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from ottla.cli.main import cli


class Ottla:
    """`ottla("topics", "list")`: what it prints. It must succeed, unless another status is expected."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def run(self, *arguments: str, given: bytes | str | None = None) -> Result:
        runner = CliRunner(env={"OTTLA_BOOTSTRAP_SERVERS": self.bootstrap})
        return runner.invoke(cli, arguments, input=given, prog_name="ottla")

    def __call__(self, *arguments: str, given: bytes | str | None = None, status: int = 0) -> str:
        done = self.run(*arguments, given=given)
        assert done.exit_code == status, (done.output, done.exception)
        return done.output

    def json(self, *arguments: str, given: bytes | str | None = None) -> Any:
        done = self.run(*arguments, "--json", given=given)
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)  # how far it is goes to standard error
