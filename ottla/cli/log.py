"""`ottla log`: print the files of a broker, or read them through and say what is damaged, where, and what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Final

import click

from ottla.cli.cluster import json_option, print_json
from ottla.cli.failure import Failure, Misused, Suggesting
from ottla.cli.log_dump import dump
from ottla.cli.log_strays import remove_strays
from ottla.cli.output import Progress, quiet_option
from ottla.errors import Fault
from ottla.log import checkpoints
from ottla.log.accept_loss import accept_loss
from ottla.log.manifest import FILE_NAME as MANIFEST
from ottla.log.manifest import ManifestDamaged, Range
from ottla.log.verify import (
    Checked,
    checkpointed,
    confirmed,
    log_bytes,
    partition_directories,
    stray_directories,
    verify_checkpoints,
    verify_partition,
)
from ottla.log.verify_claims import AT_START, Checkpointed, Finding
from ottla.runtime.disk import RealDisk

STRAY: Final = (
    "a stray directory, no partition of this broker. Operating.md says how they come about; `ottla log remove-strays` "
    "removes them"
)


@click.group("log", cls=Suggesting)
def command() -> None:
    """Look at the files of a broker.

    \b
    Example:
      ottla log verify ottla-data
    """


command.add_command(dump)
command.add_command(remove_strays)


@command.command("verify")
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@quiet_option
@json_option
def verify(directories: tuple[str, ...], as_json: bool) -> None:
    """Read every batch in data directories (log.dirs), or in directories of single partitions, and hold indexes, leader
    epochs, snapshots, manifests and checkpoints against them. Nothing is changed. Exit status: 0 nothing is damaged, 1
    something is, 2 there is nothing to read.

    A broker may be running: what it is writing meanwhile is not held against it.

    \b
    Example:
      ottla log verify ottla-data
    """
    began = time.monotonic()
    findings: list[Finding] = []
    notes: list[str] = []
    totals = [0, 0, 0, 0]
    for directory in dict.fromkeys(directories):
        for checked in _verified(directory.rstrip("/") or "/", findings, notes, quiet=as_json):
            findings += checked.findings
            notes += checked.notes
            totals = [
                total + more
                for total, more in zip(totals, (1, checked.segments, checked.batches, checked.size_bytes), strict=True)
            ]
    partitions, segments, batches, size = totals
    if as_json:
        print_json(
            {
                "partitions": partitions,
                "segments": segments,
                "batches": batches,
                "bytes": size,
                "damaged": [finding._asdict() for finding in findings],
                "notes": notes,
            }
        )
    else:
        for note in notes:
            click.echo(f"note: {note}")
        for finding in findings:
            click.echo(_told(finding))
        seconds = time.monotonic() - began
        click.echo(
            f"read {batches:,} batches, {size:,} bytes, {segments:,} segments, {partitions:,} partitions "
            f"in {seconds:.1f} s"
        )
    if findings:
        raise Failure(_verdict(findings))
    if not as_json:
        click.echo("nothing is damaged")


@command.command("accept-loss")
@click.argument("directory", metavar="DIR")
@click.argument("partition", metavar="TOPIC-PARTITION")
@quiet_option
@json_option
def accept(directory: str, partition: str, as_json: bool) -> None:
    """Give up the offsets that are missing in a partition, while its broker is stopped. Reads of them fail with
    KAFKA_STORAGE_ERROR until then, since another replica or a backup may still have them. Afterwards they are a gap, as
    compaction leaves it: consumers go on with the next record. Transactions whose ends may have stood there count as
    aborted. Other replicas take it over from their leader. Exit status: 0 done, or nothing is missing; 1 it cannot be
    done; 2 there is no such partition.

    \b
    Example:
      ottla log accept-loss ottla-data orders-0
    """
    disk = RealDisk()
    directory = directory.rstrip("/") or "/"
    path = f"{directory}/{partition}"
    if "/" not in partition and not os.path.isdir(path) and _unseen(disk, directory, path):
        raise Failure(f"{path} is lost, and no broker has seen that yet", hint=_START_ONCE)
    if "/" in partition or not os.path.isdir(path):
        raise Misused(f"{path} is no partition", hint="Name the data directory (log.dirs) and a directory in it.")
    lock = disk.lock(f"{directory}/.lock")
    if lock is None:
        raise Failure(f"a broker is running on {directory}", hint="Stop it first.")
    try:
        given_up = _accept_loss(disk, path, quiet=as_json)
        if not given_up and _unseen(disk, directory, path):
            raise Failure(f"offsets are missing in {path}, and no broker has seen that yet", hint=_START_ONCE)
    except ManifestDamaged as damaged:
        raise Failure(f"{path}/{MANIFEST}: {damaged}", hint="Start the broker once: it rebuilds it.") from damaged
    finally:
        lock.release()
    if as_json:
        print_json({"partition": partition, "given_up": [{"start": start, "end": end} for start, end in given_up]})
        return
    if not given_up:
        click.echo(f"{partition}: nothing is missing")
    for start, end in given_up:
        click.echo(f"{partition}: offsets {start}..{end - 1} are given up: {end - start} offsets")


_START_ONCE: Final = (
    "Start the broker once, so that it finds out what is missing and copies it from other replicas. What is missing "
    "then can be given up."
)


def _unseen(disk: RealDisk, directory: str, path: str) -> bool:
    """Whether the next start of a broker would find something missing in a partition."""
    finished = _finished(disk, directory)
    told, wrong, _ = verify_checkpoints(disk, directory, finished=finished)
    if not os.path.isdir(path):
        return any(finding.path == path for finding in wrong)
    findings = _look(disk, path, checkpointed(told, path), finished, False, lambda size: None).findings
    return any(finding.records and finding.remedy == AT_START for finding in findings)


def _accept_loss(disk: RealDisk, path: str, *, quiet: bool) -> tuple[Range, ...]:
    bar: Progress | None = None

    def reached(done: int, total: int) -> None:
        nonlocal bar
        bar = bar or Progress(f"writing {path} anew", 0 if quiet else total)
        bar.reached(done)

    try:
        given_up = accept_loss(disk, path, reached)
        if bar is not None:
            bar.finish()
    finally:
        if bar is not None:
            bar.close()
    return given_up


LOOKS: Final = 3
"""How often something must be found beside a running broker: it may have been changing it."""


def _verified(directory: str, findings: list[Finding], notes: list[str], *, quiet: bool) -> Iterator[Checked]:
    disk = RealDisk()
    if not os.path.isdir(directory):
        raise Misused(f"{directory} is no directory", hint="Name the data directory of a broker (log.dirs).")
    paths = partition_directories(disk, directory)
    here = paths == [directory]
    home = os.path.dirname(os.path.abspath(directory)) if here else directory
    if not paths and not disk.exists(f"{directory}/{checkpoints.META_PROPERTIES}"):
        raise Misused(f"{directory} holds no partition", hint="Name the data directory of a broker (log.dirs).")
    running = _running(disk, home)
    told, wrong, remarkable = verify_checkpoints(disk, home, finished=_finished(disk, home), running=running)
    if not here:
        findings += wrong
        notes += remarkable
        notes += [f"{path}: {STRAY}" for path in stray_directories(disk, directory)]
    bar = Progress(f"reading {directory}", 0 if quiet else sum(log_bytes(disk, path) for path in paths))
    seen = 0

    def read(size: int) -> None:
        nonlocal seen
        seen += size
        bar.reached(seen)

    for path in paths:
        finished = _finished(disk, home)
        checked = _look(disk, path, checkpointed(told, path), finished, running, read)
        for _ in range(LOOKS - 1):
            if not checked.findings or (finished and _finished(disk, home)):
                break
            if not (running := running or _running(disk, home)):
                break
            told = verify_checkpoints(disk, home, finished=False, running=True)[0]
            finished = False
            again = _look(disk, path, checkpointed(told, path), finished, running, lambda size: None)
            checked = confirmed(checked, again)
        yield checked
    bar.finish()


def _look(
    disk: RealDisk, path: str, told: Checkpointed, finished: bool, running: bool, read: Callable[[int], None]
) -> Checked:
    try:
        return verify_partition(disk, path, told, finished=finished, running=running, read=read)
    except Fault as fault:
        if not disk.exists(path):  # deleted meanwhile
            return Checked(path, (), (), 0, 0, 0)
        return Checked(path, (Finding(path, str(fault), "look at the disk"),), (), 0, 0, 0)


def _running(disk: RealDisk, home: str) -> bool:
    """Whether a broker has the data directory open now, or perhaps has."""
    if _finished(disk, home) or not disk.exists(f"{home}/.lock"):
        return False
    try:
        lock = disk.lock(f"{home}/.lock")
    except Fault:
        return True
    if lock is not None:
        lock.release()
    return lock is None


def _finished(disk: RealDisk, home: str) -> bool:
    """A broker takes the mark away before it writes anything else."""
    return disk.exists(f"{home}/{checkpoints.CLEAN_SHUTDOWN}")


def _told(finding: Finding) -> str:
    where = finding.path
    if finding.position >= 0:
        where += f", byte {finding.position}"
    if finding.offset >= 0:
        where += f", offset {finding.offset}"
    return f"{where}: {finding.what}\n  {finding.remedy}"


def _verdict(findings: list[Finding]) -> str:
    records = sum(1 for finding in findings if finding.records)
    derived = len(findings) - records
    parts = []
    if records:
        parts.append(f"records are damaged in {records} {'place' if records == 1 else 'places'}")
    if derived:
        parts.append(
            f"{derived} {'file' if derived == 1 else 'files'} that a broker can do without "
            f"{'is' if derived == 1 else 'are'} damaged"
        )
    return "; ".join(parts)
