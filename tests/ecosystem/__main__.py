"""Other people's systems on Ottla, or on Apache Kafka: `make interop-ecosystem [ON=kafka] [ONLY=streams,flink]`.

One system after the other, on three brokers that they share; a system that fails gets new ones made for the next.
Needs Maven, npm and PyPI within reach, Java 17 and Node.js. What cannot be fetched is skipped, with the reason.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import ottla
from bench.maven import Unavailable
from bench.trio import Trio
from ottla.errors import Fault
from tests.ecosystem import needs
from tests.ecosystem.ring import Failed, Ring, cluster

SYSTEMS: Final = (
    "streams",
    "connect",
    "mirror",
    "debezium",
    "flink",
    "spring",
    "quix",
    "faust",
    "faststream",
    "bytewax",
    "celery",
    "confluent_javascript",
    "platformatic",
)
TEMPORARY: Final = 75
"""EX_TEMPFAIL: nothing could be run, since what it takes cannot be had here and now."""

INTERRUPTED: Final = 130


class Result(NamedTuple):
    system: str
    title: str
    version: str
    outcome: str
    seconds: float
    said: str


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def play(name: str, kind: str, brokers: Trio, keep: bool) -> Result:
    system = import_module(f"tests.ecosystem.{name}")
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"  {time.monotonic() - began:6.1f} s  {line}", flush=True)

    version = ""
    directory = Path(tempfile.mkdtemp(prefix=f"ottla-{name}-"))
    directory.chmod(0o755)
    ring = Ring(kind, brokers, directory, say)
    outcome, said = "failed", ""
    print(f"{system.TITLE}", flush=True)
    try:
        version = system.prepare()
        say(f"version {version}")
        said = system.run(ring)
        outcome = "passed"
    except Unavailable as missing:
        outcome, said = "skipped", str(missing)
    except Failed as difference:
        said = str(difference)
    except Exception:  # noqa: BLE001 - one system's failure, whatever it is, must not hide the results of the others
        said = traceback.format_exc()
    finally:
        ring.close()
        if outcome == "failed" or keep:
            say(f"its logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    seconds = time.monotonic() - began
    say(f"{outcome}: {said}")
    return Result(name, system.TITLE, version, outcome, seconds, said)


def play_all(names: list[str], kind: str, keep: bool) -> list[Result]:
    results: list[Result] = []
    while len(results) < len(names):
        with cluster(kind) as brokers:
            print(f"three brokers of {_kind(kind)} are ready after {brokers.ready_s:.1f} s", flush=True)
            for name in names[len(results) :]:
                results.append(play(name, kind, brokers, keep))
                if results[-1].outcome == "failed":
                    break
    return results


def _kind(kind: str) -> str:
    return f"Apache Kafka {needs.kafka()}" if kind == "kafka" else f"Ottla {ottla.__version__}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make interop-ecosystem", description=__doc__)
    parser.add_argument("--on", choices=("ottla", "kafka"), default="ottla")
    parser.add_argument("--only", default="", help="some of them, with commas between: " + ",".join(SYSTEMS))
    parser.add_argument("--keep", action="store_true", help="the logs of what passed, too")
    asked = parser.parse_args()
    names = [name for name in asked.only.replace(" ", "").split(",") if name] or list(SYSTEMS)
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        results = play_all(names, asked.on, asked.keep)
    except Unavailable as missing:
        print(f"Apache Kafka cannot be run here: {missing}", file=sys.stderr)
        return TEMPORARY
    except Fault as failure:
        print(f"the brokers do not start: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing is left running", file=sys.stderr)
        return INTERRUPTED
    print(f"\non {_kind(asked.on)}")
    for result in results:
        first = result.said.splitlines()[0] if result.said else ""
        print(f"{result.outcome:7} {result.seconds:6.0f} s  {result.title} {result.version}: {first}")
    outcomes = {result.outcome for result in results}
    if outcomes == {"skipped"}:
        return TEMPORARY
    return 1 if "failed" in outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
