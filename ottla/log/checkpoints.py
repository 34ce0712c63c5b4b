"""The small files beside the logs, in Apache Kafka's formats.

In the data directory: `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`,
`replication-offset-checkpoint` (high watermarks) and `cleaner-offset-checkpoint`, one line per partition;
`meta.properties` (broker id, cluster id and directory id); `.kafka_cleanshutdown` (present only between a
clean stop and the next start; KIP-966 keeps the broker epoch in it, the rest is ours). In a partition's directory:
`partition.metadata` (which topic id it belongs to) and `leader-epoch-checkpoint`.

All are replaced atomically. A damaged one is a Fault that names the file: losing a checkpoint costs time or precision,
never records, so nothing here deletes or resets anything by itself.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from crc32c import crc32c

from ottla.errors import Fault
from ottla.log.quarantine import quarantine_file
from ottla.runtime import Disk, File

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
PARTITION_METADATA = "partition.metadata"

META_VERSION = "0"
_VERSION = "0"

_REMEDY = {
    RECOVERY_POINTS: "Without it every log is checked from its start after a stop that was not clean.",
    LOG_STARTS: "Without it manifests say where logs start.",
    HIGH_WATERMARKS: "Without it each leader works out its high watermark again.",
    CLEANED: "Without it every log is compacted from its start, which takes longer and loses nothing.",
}

Offsets = Mapping[tuple[str, int], int]


def read_lines(disk: Disk, path: str, fields: int, remedy: str) -> list[list[str]] | None:
    """The entries of a checkpoint: a version, a count, then lines of `fields` words. None when absent."""
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    try:
        lines = data.decode("utf-8").splitlines()
        if len(lines) < 2 or not lines[0].isdigit() or not lines[1].isdigit():
            raise ValueError("it does not begin with a version and a count")
        if lines[0] != _VERSION:
            raise ValueError(f"its version is {lines[0]}, this release knows {_VERSION}")
        entries = [line.split(" ") for line in lines[2:]]
        if len(entries) != int(lines[1]):
            raise ValueError(f"it announces {lines[1]} entries and has {len(entries)}")
        if any(len(entry) != fields for entry in entries):
            raise ValueError("a line has the wrong number of fields")
        return entries
    except ValueError as problem:  # also text that is not UTF-8
        raise Fault(f"The checkpoint {path} is damaged: {problem}. {remedy}") from problem


def format_lines(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def read_offsets(disk: Disk, directory: str, name: str) -> dict[tuple[str, int], int]:
    """Offsets by topic and partition; none when there is no such checkpoint yet."""
    path = f"{directory}/{name}"
    remedy = _REMEDY[name]
    offsets: dict[tuple[str, int], int] = {}
    for topic, partition, offset in read_lines(disk, path, 3, remedy) or ():
        try:
            key = (topic, int(partition))
            if int(offset) < 0 or key[1] < 0 or key in offsets:
                raise ValueError(f"{topic} {partition} {offset} makes no sense")
            offsets[key] = int(offset)
        except ValueError as problem:
            raise Fault(f"The checkpoint {path} is damaged: {problem}. {remedy}") from problem
    return offsets


def write_offsets(disk: Disk, directory: str, name: str, offsets: Offsets) -> None:
    assert name in _REMEDY
    lines = (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())
    disk.write_atomic(f"{directory}/{name}", format_lines(lines))


def read_partition_metadata(disk: Disk, directory: str) -> bytes | None:
    """The 16 bytes of the topic id that this partition directory belongs to; None when it does not say."""
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    if _begins_partition_metadata(data.rstrip(b"\0")):
        return None  # the machine went down before it was on the device, or before all of it was
    try:
        version, topic_id = (_value(line, ":") for line in data.decode("ascii").splitlines() if line)
        if version != _VERSION:
            raise ValueError(f"its version is {version}")
        return _uuid(topic_id)
    except ValueError as problem:
        raise Fault(
            f"{path} is damaged: {'it is no text' if isinstance(problem, UnicodeError) else problem}."
        ) from problem


def _partition_metadata_text(topic_id: bytes) -> bytes:
    return f"version: {_VERSION}\ntopic_id: {format_uuid(topic_id)}".encode()


_UUID_TEXT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def _begins_partition_metadata(data: bytes) -> bool:
    """Whether these are the first bytes of such a text, and not all of it."""
    whole = _partition_metadata_text(bytes(16))
    head = whole[: -len(format_uuid(bytes(16)))]
    if len(data) <= len(head):
        return head.startswith(data)
    return len(data) < len(whole) and data.startswith(head) and _UUID_TEXT.issuperset(data[len(head) :])


def partition_metadata(disk: Disk, directory: str) -> File:
    return disk.open(f"{directory}/{PARTITION_METADATA}", create=True)


def write_partition_metadata(disk: Disk, directory: str, topic_id: bytes) -> None:
    """Write it, unless it exists. It is not flushed at once, because it is written with the first append of a
    partition."""
    file = partition_metadata(disk, directory)
    text = _partition_metadata_text(topic_id)
    if file.size() != len(text):  # missing, or partly written on a full disk
        file.truncate(0)
        file.append(text)
    file.close()


def format_uuid(uuid: bytes) -> str:
    """As Kafka prints them: URL-safe base64 without padding."""
    assert len(uuid) == 16
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def _uuid(text: str) -> bytes:
    try:
        uuid = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as problem:
        raise ValueError(f"{text!r} is no topic id") from problem
    if len(uuid) != 16:
        raise ValueError(f"{text!r} is no topic id")
    return uuid


def _value(line: str, separator: str) -> str:
    _, found, value = line.partition(separator)
    if not found:
        raise ValueError(f"{line!r} is no setting")
    return value.strip()


def read_meta_properties(disk: Disk, directory: str) -> dict[str, str] | None:
    """Which cluster and broker the data directory belongs to; None for a fresh one. Fault if it does not say."""
    path = f"{directory}/{META_PROPERTIES}"
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    try:
        lines = [line.strip() for line in data.decode("utf-8").splitlines()]
        settings = [line for line in lines if line and line[0] not in "#!"]
        if not settings:
            return None  # emptied: counts as missing, and is written again
        properties = {line.partition("=")[0].strip(): _value(line, "=") for line in settings}
        wanted = ("version", "broker.id", "cluster.id") if properties.get("version") == META_VERSION else ("version",)
        if absent := [name for name in wanted if not properties.get(name)]:
            raise ValueError(f"it has no {' and no '.join(absent)}")
        return properties
    except ValueError as problem:
        what = "it is no text" if isinstance(problem, UnicodeError) else problem
        raise Fault(f"{path} is damaged: {what}.") from problem


def write_meta_properties(disk: Disk, directory: str, properties: Mapping[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    disk.write_atomic(f"{directory}/{META_PROPERTIES}", text.encode())


class ClosedLog(NamedTuple):
    """Start and end of a partition's log at a clean stop. The topic id is text: another topic may have the same name
    now."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


class CleanShutdown(NamedTuple):
    """`epoch` is the broker epoch at the stop, `since` the oldest broker epoch since which every stop was clean; -1:
    not in the file. `logs`: all logs that ever had records, so that a log that is lost between a clean stop and the
    next start does not look like an empty one; None: not in the file."""

    epoch: int = -1
    since: int = -1
    logs: tuple[ClosedLog, ...] | None = None


def write_clean_shutdown(disk: Disk, directory: str, mark: CleanShutdown) -> None:
    """The last thing a clean stop writes."""
    said = {"version": 0, "brokerEpoch": mark.epoch, "cleanSince": mark.since, "logs": mark.logs or ()}
    disk.write_atomic(f"{directory}/{CLEAN_SHUTDOWN}", json.dumps({**said, "crc": _crc(said)}).encode())


def take_clean_shutdown(disk: Disk, directory: str) -> CleanShutdown | None:
    """Read and remove the clean shutdown file; None: there was no clean stop. It is removed durably before anything is
    written, so that a later crash counts as a crash."""
    mark = read_clean_shutdown(disk, directory)
    if disk.is_directory(f"{directory}/{CLEAN_SHUTDOWN}"):
        quarantine_file(disk, f"{directory}/{CLEAN_SHUTDOWN}")
    if mark is not None:
        disk.remove(f"{directory}/{CLEAN_SHUTDOWN}")
        disk.sync_dir(directory)
    return mark


def read_clean_shutdown(disk: Disk, directory: str) -> CleanShutdown | None:
    """The clean shutdown file. Its values are -1 if it cannot be trusted: its checksum is wrong, or it does not name
    the logs (another release wrote it) and the recovery points, which every clean stop writes, are missing."""
    if disk.is_directory(f"{directory}/{CLEAN_SHUTDOWN}"):
        return None
    try:
        data = disk.read(f"{directory}/{CLEAN_SHUTDOWN}")
    except FileNotFoundError:
        return None
    try:
        said = json.loads(data)
        epoch = int(said["brokerEpoch"] if "brokerEpoch" in said else said["broker_epoch"])
        mark = CleanShutdown(epoch, int(said.get("cleanSince", epoch)))
        if "crc" not in said and "logs" not in said:
            return mark if disk.exists(f"{directory}/{RECOVERY_POINTS}") else CleanShutdown()
        if said.pop("crc") != _crc(said):
            return CleanShutdown()
        return mark._replace(logs=tuple(ClosedLog(*each) for each in said["logs"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return CleanShutdown()  # as an older Kafka writes it: empty


def _crc(said: Mapping[str, Any]) -> int:
    return int(crc32c(json.dumps(said, sort_keys=True).encode()))
