"""A broker as a process that a test owns: `ottla serve` with whatever arguments, and a log in which nothing above INFO
stands unless the test announces it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from ottla.cluster.ensemble import free_ports
from ottla.local.processes import BrokerProcess, State

COMPLAINT = re.compile(r"WARNING|ERROR|CRITICAL|Traceback|never retrieved|was destroyed|never awaited")
STOP_SECONDS = 30.0


class WatchedBroker(BrokerProcess):
    """Its port is chosen at once and kept over restarts; `port=None`: the arguments say where to listen."""

    READY_SECONDS = 60.0

    def __init__(
        self, directory: Path, *arguments: str, program: Sequence[str] = (), port: int | None = 0, broker_id: int = 1
    ) -> None:
        chosen = port if port is None else port or free_ports(1)[0]
        log, output = directory / "stderr", directory / "stdout"
        super().__init__(
            directory / "data",
            *arguments,
            broker_id=broker_id,
            port=chosen,
            log=log,
            output=output,
            program=program,
        )
        self.directory = directory

    def start(self) -> Self:
        try:
            return super().start()
        except BaseException:
            self.kill()
            raise

    def stop(self, seconds: float = STOP_SECONDS) -> int | None:
        return super().stop(seconds)

    def close(self) -> None:
        """Stop it, if it runs; one that has to be killed for that is a failure."""
        if self.running:
            self.stop()
            assert self.state is not State.KILLED, f"{self} did not stop in time:\n{self.last_words()}"

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def times_said(self, text: str) -> int:
        """How often the log has a line with this text, those included that were only counted."""
        lines = [line for line in self.log_text().splitlines() if text in line]
        more = [re.search(r" \((once|\d+) more(?: times)? within \d+ s\)$", line) for line in lines]
        return sum(1 if found is None else 1 if found[1] == "once" else int(found[1]) for found in more)

    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def complaints(self, since: int = 0, allowed: Sequence[str] = ()) -> list[str]:
        """Lines of the log, from a byte position on, that no test has announced."""
        found = [line for line in self.log_text()[since:].splitlines() if COMPLAINT.search(line)]
        return [line for line in found if not any(re.search(pattern, line) for pattern in allowed)]
