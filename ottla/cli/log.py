"""`ottla log`: print and verify the files of a broker, and accept lost offsets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Final

import click

from ottla.cli.failure import Failure, Misused, Suggesting
from ottla.cli.log_dump import dump
from ottla.cli.log_strays import remove_strays
from ottla.cli.output import ProgressBar, answer, json_option, quiet_option
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
    "a stray directory, not a partition of this broker. Operating.md explains it; `ottla log remove-strays` removes it"
)


@click.group("log", cls=Suggesting)
def command() -> None:
    """Print, verify and repair the files of a broker.

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
    """Read every batch in data directories (log.dirs) or partition directories, and compare indexes, leader epochs,
    snapshots, manifests and checkpoints with them. Nothing is changed. Exit status: 0 nothing is damaged, 1 something
    is damaged, 2 there is nothing to read.

    A broker may be running: what it writes meanwhile does not count as damage.

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
    value = {
        "partitions": partitions,
        "segments": segments,
        "batches": batches,
        "bytes": size,
        "damaged": [finding._asdict() for finding in findings],
        "notes": notes,
    }
    lines = [*(f"note: {note}" for note in notes), *map(_described, findings)]
    lines.append(
        f"read {batches:,} batches, {size:,} bytes, {segments:,} segments, {partitions:,} partitions "
        f"in {time.monotonic() - began:.1f} s"
    )
    answer(as_json, value, "\n".join(lines if findings else [*lines, "nothing is damaged"]))
    if findings:
        raise Failure(_verdict(findings))


@command.command("accept-loss")
@click.argument("directory", metavar="DIR")
@click.argument("partition", metavar="TOPIC-PARTITION")
@quiet_option
@json_option
def accept(directory: str, partition: str, as_json: bool) -> None:
    """Give up the offsets that are missing in a partition, while its broker is stopped. Before that, reads of them fail
    with KAFKA_STORAGE_ERROR, because another replica or a backup may still have them. Afterwards they are a gap, as
    after compaction: consumers continue with the next record. Transactions whose markers may be among them count as
    aborted. Followers take the gap over from the leader. Exit status: 0 done, or nothing is missing; 1 it cannot be
    done; 2 there is no such partition.

    \b
    Example:
      ottla log accept-loss ottla-data orders-0
    """
    disk = RealDisk()
    directory = directory.rstrip("/") or "/"
    path = f"{directory}/{partition}"
    if "/" not in partition and not os.path.isdir(path) and _undetected(disk, directory, path):
        raise Failure(f"{path} is lost, and the broker has not detected it yet", hint=_START_ONCE)
    if "/" in partition or not os.path.isdir(path):
        raise Misused(f"{path} is not a partition", hint="Name the data directory (log.dirs) and a directory in it.")
    lock = disk.lock(f"{directory}/.lock")
    if lock is None:
        raise Failure(f"a broker is running on {directory}", hint="Stop it first.")
    try:
        given_up = _accept_loss(disk, path, quiet=as_json)
        if not given_up and _undetected(disk, directory, path):
            raise Failure(f"offsets are missing in {path}, and the broker has not detected it yet", hint=_START_ONCE)
    except ManifestDamaged as damaged:
        raise Failure(f"{path}/{MANIFEST}: {damaged}", hint="Start the broker once: it rebuilds it.") from damaged
    finally:
        lock.release()
    value = {"partition": partition, "given_up": [{"start": start, "end": end} for start, end in given_up]}
    lines = [f"{partition}: offsets {start}..{end - 1} are given up: {end - start} offsets" for start, end in given_up]
    answer(as_json, value, "\n".join(lines) or f"{partition}: nothing is missing")


_START_ONCE: Final = (
    "Start the broker once: it detects what is missing, and copies it from other replicas. The rest can be given up "
    "then."
)


def _undetected(disk: RealDisk, directory: str, path: str) -> bool:
    """Whether the next start of a broker would find something missing in a partition."""
    finished = _finished(disk, directory)
    claims, wrong, _ = verify_checkpoints(disk, directory, finished=finished)
    if not os.path.isdir(path):
        return any(finding.path == path for finding in wrong)
    findings = _look(disk, path, checkpointed(claims, path), finished, False, lambda size: None).findings
    return any(finding.records and finding.remedy == AT_START for finding in findings)


def _accept_loss(disk: RealDisk, path: str, *, quiet: bool) -> tuple[Range, ...]:
    bar: ProgressBar | None = None

    def reached(done: int, total: int) -> None:
        nonlocal bar
        bar = bar or ProgressBar(f"rewriting {path}", 0 if quiet else total)
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
"""How often damage must be found while a broker runs: it may be writing the file."""


def _verified(directory: str, findings: list[Finding], notes: list[str], *, quiet: bool) -> Iterator[Checked]:
    disk = RealDisk()
    if not os.path.isdir(directory):
        raise Misused(f"{directory} is not a directory", hint="Name the data directory of a broker (log.dirs).")
    paths = partition_directories(disk, directory)
    here = paths == [directory]
    home = os.path.dirname(os.path.abspath(directory)) if here else directory
    if not paths and not disk.exists(f"{directory}/{checkpoints.META_PROPERTIES}"):
        raise Misused(f"{directory} has no partitions", hint="Name the data directory of a broker (log.dirs).")
    running = _running(disk, home)
    claims, wrong, remarkable = verify_checkpoints(disk, home, finished=_finished(disk, home), running=running)
    if not here:
        findings += wrong
        notes += remarkable
        notes += [f"{path}: {STRAY}" for path in stray_directories(disk, directory)]
    bar = ProgressBar(f"reading {directory}", 0 if quiet else sum(log_bytes(disk, path) for path in paths))
    seen = 0

    def read(size: int) -> None:
        nonlocal seen
        seen += size
        bar.reached(seen)

    for path in paths:
        finished = _finished(disk, home)
        checked = _look(disk, path, checkpointed(claims, path), finished, running, read)
        for _ in range(LOOKS - 1):
            if not checked.findings or (finished and _finished(disk, home)):
                break
            if not (running := running or _running(disk, home)):
                break
            claims = verify_checkpoints(disk, home, finished=False, running=True)[0]
            finished = False
            again = _look(disk, path, checkpointed(claims, path), finished, running, lambda size: None)
            checked = confirmed(checked, again)
        yield checked
    bar.finish()


def _look(
    disk: RealDisk, path: str, claims: Checkpointed, finished: bool, running: bool, read: Callable[[int], None]
) -> Checked:
    try:
        return verify_partition(disk, path, claims, finished=finished, running=running, read=read)
    except Fault as fault:
        if not disk.exists(path):  # deleted meanwhile
            return Checked(path, (), (), 0, 0, 0)
        return Checked(path, (Finding(path, str(fault), "look at the disk"),), (), 0, 0, 0)


def _running(disk: RealDisk, home: str) -> bool:
    """Whether a broker may have the data directory open."""
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
    """Whether the broker was shut down cleanly: it removes the file before it writes anything."""
    return disk.exists(f"{home}/{checkpoints.CLEAN_SHUTDOWN}")


def _described(finding: Finding) -> str:
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
            f"{derived} {'file' if derived == 1 else 'files'} that a broker can rebuild "
            f"{'is' if derived == 1 else 'are'} damaged"
        )
    return "; ".join(parts)
