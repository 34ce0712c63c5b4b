"""Damaged files of a broker, simulated or real: removed, emptied, cut, extended, or with a flipped bit."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

from ottla.log.manifest import FILE_NAME as MANIFEST
from ottla.log.segment import file_stem
from ottla.log.transaction_index import SUFFIX as TXNINDEX_SUFFIX
from ottla.replication.partition import Partition
from ottla.replication.replicas import CHECKPOINTS
from ottla.replication.scrubber import readable
from ottla.runtime import Disk
from ottla.wire.batch import batches

SCRUB_PASSES: Final = 2
"""When so many have ended since, all was read since."""
MAGIC_AT: Final = 16
"""The first byte of a batch that its checksum covers."""
EXTENDED_BYTES: Final = 90
ABORTED_CHANCE: Final = 0.3
"""That it is an index of aborted transactions, where there is one."""
ALL_TRACES_CHANCE: Final = 0.5
"""The probability that a lost partition is lost with all its checkpoint entries."""

_LEFT_OVER: Final = (".damaged", ".tmp", ".cleaned", ".deleted", ".swap")
_ACTS: Final = ("removed", "emptied", "cut", "extended", "flipped")


def damage_a_file(disk: Disk, data: str, random: Random) -> str:
    """Damage one file of one partition in the data directory of a stopped broker. Returns a description."""
    paths = [f"{data}/{name}" for name in disk.listdir(data)]
    directories = [path for path in paths if any(name.endswith(".log") for name in _files(disk, path))]
    if not directories:
        return "there is no file to damage"
    directory = random.choice(directories)
    if random.random() < 0.1:
        disk.rmtree(directory)
        if random.random() < ALL_TRACES_CHANCE:
            for name in CHECKPOINTS:
                disk.remove(f"{data}/{name}")
            return f"{directory} was removed with all checkpoints"
        return f"{directory} was removed"
    names = _files(disk, directory)
    logs = [name for name in names if name.endswith(".log")]
    name = random.choice(logs if random.random() < 0.6 else names)
    path, act = f"{directory}/{name}", random.choice(_ACTS)
    content = disk.read(path)
    if act == "removed":
        disk.remove(path)
    elif act == "flipped" and content:
        flip_a_bit_of(disk, path, content, random)
    else:
        cut = {"emptied": 0, "cut": random.randrange(len(content) + 1)}.get(act, len(content))
        more = random.randbytes(random.randint(1, EXTENDED_BYTES)) if act == "extended" else b""
        disk.write_atomic(path, content[:cut] + more)
    return f"{path} was {act}"


def _files(disk: Disk, directory: str) -> list[str]:
    """The files that belong to the log itself, without leftovers."""
    names = disk.listdir(directory) if disk.is_directory(directory) else []
    return [name for name in names if name == MANIFEST or not name.endswith(_LEFT_OVER)]


def flip_a_bit(disk: Disk, replicas: Iterable[Partition], random: Random) -> str | None:
    """Damage a flushed segment of a running broker. Returns a description; None if there is none."""
    found = [(partition, segment) for partition in replicas for segment in readable(partition)]
    if not found:
        return None
    aborted = [path for partition, segment in found if disk.exists(path := _aborted(partition, segment.base_offset))]
    if aborted and random.random() < ABORTED_CHANCE:
        path = random.choice(aborted)
        return flip_a_bit_of(disk, path, disk.read(path), random)
    partition, segment = random.choice(found)
    content = disk.read(segment.log.path)
    if segment is partition.log.active:
        below = [(at, header) for at, header in batches(content) if header.next_offset <= partition.log.recovery_point]
        content = content[: below[-1][0] + below[-1][1].size] if below else b""
    return flip_a_bit_of(disk, segment.log.path, content, random) if content else None


def flip_a_bit_of(disk: Disk, path: str, content: bytes, random: Random) -> str:
    """Of a log, only where the checksum of a batch covers it, or leads to it."""
    at = _covered(content, random) if path.endswith(".log") else random.randrange(len(content))
    disk.overwrite(path, bytes([content[at] ^ 1 << random.randrange(8)]), at)
    return f"a bit of {path} flips at {at}"


def _aborted(partition: Partition, base_offset: int) -> str:
    return file_stem(partition.log.path, base_offset) + TXNINDEX_SUFFIX


def _covered(content: bytes, random: Random) -> int:
    """The position of a byte that the checksum of a batch covers, or that leads to it."""
    position, header = random.choice(list(batches(content)))
    return position + random.randrange(MAGIC_AT, header.size)
