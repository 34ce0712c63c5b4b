"""`ottla log`: print the files of a broker, or read them through and say what is damaged, where, and what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import click

from ottla.cli.cluster import json_option, print_json
from ottla.cli.failure import Failure, Misused
from ottla.cli.log_dump import dump
from ottla.cli.output import Progress
from ottla.errors import Fault
from ottla.log import checkpoints
from ottla.log.verify import Checked, Finding, partition_directories, verify_checkpoints, verify_partition
from ottla.runtime.disk import RealDisk


@click.group("log")
def command() -> None:
    """Look at the files of a broker.

    \b
    Example:
      ottla log verify ottla-data
    """


command.add_command(dump)


@command.command("verify")
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@json_option
def verify(directories: tuple[str, ...], as_json: bool) -> None:
    """Read every batch in data directories (log.dirs), or in directories of single partitions, and hold indexes, leader
    epochs and snapshots against them. Nothing is changed. Exit status: 0 nothing is damaged, 1 something is, 2 there is
    nothing to read.

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
        for checked in _verified(directory.rstrip("/") or "/", findings, quiet=as_json):
            findings += checked.findings
            notes += checked.notes
            totals = [
                total + more
                for total, more in zip(
                    totals, (1, checked.segments, checked.batches, checked.size_bytes), strict=True
                )
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


def _verified(directory: str, findings: list[Finding], *, quiet: bool) -> Iterator[Checked]:
    disk = RealDisk()
    if not os.path.isdir(directory):
        raise Misused(f"{directory} is no directory", hint="Name the data directory of a broker (log.dirs).")
    paths = partition_directories(disk, directory)
    here = paths == [directory]
    home = os.path.dirname(os.path.abspath(directory)) if here else directory
    if not paths and not disk.exists(f"{directory}/{checkpoints.META_PROPERTIES}"):
        raise Misused(
            f"{directory} holds no partition", hint="Name the data directory of a broker (log.dirs)."
        )
    if not here:
        findings += verify_checkpoints(disk, directory)
    finished = disk.exists(f"{home}/{checkpoints.CLEAN_SHUTDOWN}")
    bar = Progress(f"reading {directory}", 0 if quiet else len(paths))
    for done, path in enumerate(paths, 1):
        try:
            yield verify_partition(disk, path, finished=finished)
        except Fault as fault:
            yield Checked(path, (Finding(path, str(fault), "look at the disk"),), (), 0, 0, 0)
        bar.reached(done)
    bar.close()


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
