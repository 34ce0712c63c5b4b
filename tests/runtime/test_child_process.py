"""Child processes: reports, failures, priority, and their end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.local.waiting import wait_for
from ottla.runtime import ChildFailed, ChildKilled, ChildStarved, child_process
from ottla.runtime.child import RealChild
from ottla.runtime.child_process import run_in_child

WORK = "tests.runtime.works"


async def reports(work: str, job: dict, **options) -> list[dict]:
    return [report async for report in run_in_child(f"{WORK}:{work}", job, **options)]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_reports_are_yielded_one_by_one():
    assert asyncio.run(reports("count", {"to": 3})) == [{"number": 0}, {"number": 1}, {"number": 2}]


def test_a_child_has_the_lowest_priority_unless_it_insists():
    [report] = asyncio.run(reports("describe", {}))
    assert report["priority"] == 19
    assert report["idle"] == hasattr(os, "SCHED_IDLE")
    assert not report["asyncio"]
    [report] = asyncio.run(reports("describe", {}, insist=True))
    assert 10 <= report["priority"] <= 19
    assert not report["idle"]


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not tell")
def test_a_child_without_a_processor_is_child_starved(monkeypatch):
    monkeypatch.setattr(child_process, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(child_process, "STARVED_SECONDS", -1.0)
    monkeypatch.setattr(child_process, "STARVED_RATIO", -1)
    with pytest.raises(ChildStarved):
        asyncio.run(reports("never_end", {}))


def test_exceptions_of_the_child_are_raised():
    with pytest.raises(Refused) as refused:
        asyncio.run(reports("refuse", {}))
    assert refused.value.code == ErrorCode.corrupt_message
    with pytest.raises(StorageFault, match="no room"):
        asyncio.run(reports("fail_to_store", {}))


def test_an_unexpected_failure_is_child_failed_with_the_traceback(capfd):
    with pytest.raises(ChildFailed) as failed:
        asyncio.run(reports("crash", {}))
    assert "in crash\n" in str(failed.value.__cause__)
    assert str(failed.value.__cause__).endswith("ZeroDivisionError: integer division or modulo by zero")
    assert capfd.readouterr().err == "", "the log may be JSON"
    with pytest.raises(ChildKilled, match="SIGKILL"):
        asyncio.run(reports("kill_itself", {}))


def test_a_child_ends_when_the_generator_is_closed():
    async def look() -> int:
        async with aclosing(run_in_child(f"{WORK}:never_end", {})) as running:
            async for report in running:
                return int(report["pid"])
        raise AssertionError

    assert gone(asyncio.run(look()))


def test_a_child_ends_with_its_parent(tmp_path):
    script = (
        "import asyncio\n"
        "from ottla.runtime.child_process import run_in_child\n"
        "async def main():\n"
        f"    async for report in run_in_child('{WORK}:never_end', {{}}):\n"
        "        print(report['pid'], flush=True)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=os.getcwd())
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: gone(child), "the child to end with its parent", 5)


def test_a_child_keeps_to_its_rate():
    child = RealChild(bytes_per_second=1_000_000)
    before = time.monotonic()
    for _ in range(30):
        child.pace(10_000)
    assert 0.25 < time.monotonic() - before < 2
    before = time.monotonic()
    RealChild(bytes_per_second=None).pace(10**12)
    assert time.monotonic() - before < 0.1
