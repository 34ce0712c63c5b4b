"""Workers of the load: functions that run in their own processes and start at the same time.

A worker connects, reports that it is ready, starts with the others, and returns a Tally. The CPU time of the broker is
read when all are ready and when all are done, so that connecting does not count.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Any

from bench.connection import Broken

START_DELAY_S = 0.05
STRAGGLER_S = 60.0


@dataclass(slots=True)
class Tally:
    """Work of one worker between the monotonic times `begin` and `end`."""

    begin: float = 0.0
    end: float = 0.0
    requests: int = 0
    records: int = 0
    waits: int = 0  # responses that ask for a retry
    cpu_seconds: float = 0.0
    latencies_us: dict[float, float] = field(default_factory=dict)


# Called when the worker is connected; returns the instant to stop at.
Start = Callable[[], float]
Worker = Callable[[Start], Tally]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The tallies of all workers, in the order of the workers, and the CPU time of the broker."""

    tallies: list[Tally]
    broker_cpu_seconds: float

    @property
    def elapsed(self) -> float:
        return elapsed(self.tallies)

    @property
    def generator_cores(self) -> float:
        return sum(tally.cpu_seconds for tally in self.tallies) / self.elapsed


def elapsed(tallies: list[Tally]) -> float:
    """From the first worker's start to the last worker's end."""
    return max(tally.end for tally in tallies) - min(tally.begin for tally in tallies)


def run(workers: list[Worker], seconds: float, broker_cpu: Callable[[], float]) -> Outcome:
    fork = multiprocessing.get_context("fork")
    pipes, processes = [], []
    try:
        for worker in workers:
            ours, theirs = fork.Pipe()
            process = fork.Process(target=_in_child, args=(worker, theirs), daemon=True)
            with warnings.catch_warnings():
                # Python 3.12 warns of threads that the child will lack; a worker uses none.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _receive(pipe)
        cpu_before = broker_cpu()
        begin = time.monotonic() + START_DELAY_S
        for pipe in pipes:
            pipe.send((begin, begin + seconds))
        tallies = [_receive(pipe, seconds) for pipe in pipes]
        return Outcome([tally for tally in tallies if tally is not None], broker_cpu() - cpu_before)
    finally:
        for process in processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()


def _receive(pipe: Pipe[Any, Any], seconds: float = 0.0) -> Tally | None:
    """A tally, or None from a worker that is ready."""
    if not pipe.poll(seconds + STRAGGLER_S):
        raise Broken("a worker of the load got no answer")
    try:
        message = pipe.recv()
    except EOFError:
        raise Broken("a worker of the load died") from None
    if isinstance(message, str):
        raise Broken(message)
    return message if isinstance(message, Tally) else None


def _in_child(worker: Worker, pipe: Pipe[Any, Any]) -> None:
    cpu_before = 0.0

    def start() -> float:
        nonlocal cpu_before
        pipe.send(None)
        begin, stop = pipe.recv()
        cpu_before = time.process_time()
        time.sleep(max(0.0, begin - time.monotonic()))
        return float(stop)

    gc.disable()
    gc.freeze()  # garbage of the parent's: to end a client whose threads are not here waits for ever, or crashes
    try:
        tally = worker(start)
        tally.cpu_seconds = time.process_time() - cpu_before
        pipe.send(tally)
    except Broken as broken:
        pipe.send(str(broken))
    except Exception:  # noqa: BLE001 - whatever it was, the parent shows it and voids the run
        pipe.send(traceback.format_exc())
