"""The manifest of one partition: which files its log must have. A file of ours beside Apache Kafka's, `FILE_NAME`.

    ottla-manifest 1
    topic <topic id, 32 hex digits>                            if it is known
    log-start <offset>                                         -1: not proven
    cut <offset>                                               only between a truncation and the next checkpoints
    missing <first offset> <end offset>                        a range that is lost and was not given up yet
    given-up <first offset> <end offset>                       a range that was given up; other replicas may have it
    decided <first offset> <end offset>                        a lost range whose transactions are known
    aborted <producer id> <first offset> <last offset>         whose marker is lost
    undecided <producer id> <first offset> <last offset>       the transaction may have ended in a lost range
    segment <base> <end> <size> <index> <timeindex> <txnindex>
    active <base> <end> <size> <index> <timeindex> <txnindex>  as a clean close left it
    epochs <leader-epoch-checkpoint>                           as a clean close left it
    snapshots <offset>:<crc> ...                               the producer snapshots that a clean close left
    crc <of all lines before>

Offsets are half-open; the end of a closed segment is where the next one begins. Derived files are given by their
CRC-32C in hex: `-` is an index of which nothing is known, or a segment without aborted transactions (no .txnindex).

**It never claims what may not be there.** A claim is added when the files are on the device (the flush of a closed
segment, the end of a compaction, a clean close), and removed, durably, before a file is renamed or truncated
(retention, compaction, truncation). So after a kill or a power cut at any moment every claim holds, and a
contradiction is damage. Nothing is proven of segments without a claim. The active segment may grow beyond its claim.
The claims of its derived files, of the epochs and of the producer snapshots count only after a clean stop.

**The log start is durable before the first file is renamed.** A log whose first file begins after the log start of its
manifest has lost that file. A leader sends its followers this log start only (`proven_start`). If the log starts after
a range that was given up, followers get the start of that range: they may have it.

**The last process that wrote to the log has written it, or it does not exist.** Its name ends like the names of deleted
files: Apache Kafka and earlier releases remove such files when they open a log, and no other program writes to one. A
missing or damaged manifest proves nothing, and is rebuilt from the log: evidence is lost, but no record.

`cut`: after a truncation, checkpoints of the data directory may still have higher offsets. They count up to `cut`,
until they have been written again (`checkpointed`).

Retention must work on a full disk: if a claim cannot be removed by writing, the manifest is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from crc32c import crc32c

from ottla.log.segment import file_stem
from ottla.runtime import Disk

FILE_NAME = "ottla-manifest.deleted"
NOT_PROVEN = -1
NO_CUT = -1
NO_CRC = -1

Range = tuple[int, int]
"""A half-open range of offsets."""

_HEAD = "ottla-manifest 1"
_DERIVED = ("index", "timeindex", "txnindex")


def merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return tuple(joined)


def without(ranges: Iterable[Range], gone: Iterable[Range]) -> tuple[Range, ...]:
    """The ranges minus others."""
    left = list(ranges)
    for first, last in gone:
        parts = [part for start, end in left for part in ((start, min(end, first)), (max(start, last), end))]
        left = [part for part in parts if part[0] < part[1]]  # or they would double with each
    return merged(left)


class ManifestDamaged(Exception):
    """The bytes are not a manifest."""


class SegmentClaim(NamedTuple):
    """The files of a segment: sizes and checksums."""

    base_offset: int
    end_offset: int
    size: int
    index_crc: int = NO_CRC
    timeindex_crc: int = NO_CRC
    txnindex_crc: int = NO_CRC


class LostEnd(NamedTuple):
    """A transaction whose end is in a lost range, or may be. `last_offset` is its marker's, or the last lost one."""

    producer_id: int
    first_offset: int
    last_offset: int


class LostEnds(NamedTuple):
    """Results for transactions whose markers are lost, and the ranges for which they were determined."""

    aborted: tuple[LostEnd, ...] = ()
    undecided: tuple[LostEnd, ...] = ()
    decided: tuple[Range, ...] = ()


NO_ENDS = LostEnds()


class Manifest(NamedTuple):
    """See the module."""

    log_start: int = NOT_PROVEN
    segments: tuple[SegmentClaim, ...] = ()
    active: SegmentClaim | None = None
    cut: int = NO_CUT
    missing: tuple[Range, ...] = ()
    topic_id: bytes | None = None
    epochs_crc: int = NO_CRC
    given_up: tuple[Range, ...] = ()
    decided: tuple[Range, ...] = ()
    aborted: tuple[LostEnd, ...] = ()
    undecided: tuple[LostEnd, ...] = ()
    snapshots: tuple[tuple[int, int], ...] = ()
    """Offset and checksum."""

    @property
    def proven_start(self) -> int:
        """The log start without ranges that were given up: other replicas may delete records before it."""
        start = self.log_start
        for first, end in reversed(self.given_up):
            start = min(first, start) if end >= start else start
        return start

    @property
    def end_offset(self) -> int:
        """The highest end of the log that it proves; -1: none."""
        ends = [claim.end_offset for claim in self.segments[-1:]]
        return max([*ends, -1 if self.active is None else self.active.end_offset])

    def claim(self, base_offset: int) -> SegmentClaim | None:
        for claim in reversed(self.segments):
            if claim.base_offset == base_offset:
                return claim
        return self.active if self.active is not None and self.active.base_offset == base_offset else None

    def with_segments(self, claims: Iterable[SegmentClaim]) -> Manifest:
        """Add these claims, and replace older ones of the same segments."""
        by_base = {claim.base_offset: claim for claim in self.segments}
        by_base.update((claim.base_offset, claim) for claim in claims)
        active = None if self.active is not None and self.active.base_offset in by_base else self.active
        return self._replace(segments=tuple(claim for _, claim in sorted(by_base.items())), active=active)

    def without(self, bases: Collection[int]) -> Manifest:
        kept = tuple(claim for claim in self.segments if claim.base_offset not in bases)
        active = None if self.active is not None and self.active.base_offset in bases else self.active
        if len(kept) == len(self.segments) and active is self.active:
            return self
        return self._replace(segments=kept, active=active)

    def started_at(self, log_start: int) -> Manifest:
        """The log starts at `log_start`: claims that end before it are removed."""
        active = self.active if self.active is not None and self.active.end_offset > log_start else None
        return self._replace(
            log_start=log_start,
            segments=tuple(claim for claim in self.segments if claim.end_offset > log_start),
            active=active,
            missing=tuple((max(start, log_start), end) for start, end in self.missing if end > log_start),
            given_up=tuple(each for each in self.given_up if each[1] >= log_start),
            decided=tuple(each for each in self.decided if each[1] > log_start),
            aborted=tuple(each for each in self.aborted if each.last_offset >= log_start),
            undecided=tuple(each for each in self.undecided if each.last_offset >= log_start),
        )

    def ended_at(self, offset: int) -> Manifest:
        """The log is about to be truncated to `offset`."""
        active = self.active if self.active is not None and self.active.end_offset <= offset else None
        return self._replace(
            log_start=min(self.log_start, offset),
            segments=tuple(claim for claim in self.segments if claim.end_offset <= offset),
            active=active,
            cut=offset if self.cut == NO_CUT else min(self.cut, offset),
            missing=tuple((start, min(end, offset)) for start, end in self.missing if start < offset),
            given_up=tuple((start, min(end, offset)) for start, end in self.given_up if start < offset),
            epochs_crc=NO_CRC,
            snapshots=tuple(each for each in self.snapshots if each[0] <= offset),
            decided=tuple((start, end) for start, end in self.decided if end <= offset),
            aborted=tuple(each for each in self.aborted if each.last_offset < offset),
            undecided=tuple(each for each in self.undecided if each.last_offset < offset),
        )

    def encode(self) -> bytes:
        lines = [_HEAD]
        if self.topic_id is not None:
            lines.append(f"topic {self.topic_id.hex()}")
        lines.append(f"log-start {self.log_start}")
        if self.cut != NO_CUT:
            lines.append(f"cut {self.cut}")
        lines += [f"missing {start} {end}" for start, end in self.missing]
        lines += [f"given-up {start} {end}" for start, end in self.given_up]
        lines += [f"decided {start} {end}" for start, end in self.decided]
        lines += [f"aborted {' '.join(map(str, each))}" for each in self.aborted]
        lines += [f"undecided {' '.join(map(str, each))}" for each in self.undecided]
        lines += [f"segment {_claim_text(claim)}" for claim in self.segments]
        if self.active is not None:
            lines.append(f"active {_claim_text(self.active)}")
        if self.epochs_crc != NO_CRC:
            lines.append(f"epochs {_crc_text(self.epochs_crc)}")
        if self.snapshots:
            lines.append("snapshots " + " ".join(f"{offset}:{_crc_text(crc)}" for offset, crc in self.snapshots))
        body = "\n".join([*lines, ""]).encode()
        return body + f"crc {crc32c(body):08x}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        at = data.rfind(b"crc ")
        if at < 0 or data[at:] != f"crc {crc32c(data[:at]):08x}\n".encode():
            raise ManifestDamaged("its checksum is wrong")
        lines = data[:at].decode("ascii").splitlines()
        if lines[:1] != [_HEAD]:
            raise ManifestDamaged(f"it begins with {lines[:1]}, this release knows {_HEAD!r}")
        fields: dict[str, list[list[str]]] = {}
        for line in lines[1:]:
            name, *values = line.split(" ")
            fields.setdefault(name, []).append(values)
        active = [decode_claim(values) for values in fields.get("active", ())]
        return cls(
            log_start=int(fields["log-start"][0][0]),
            segments=tuple(decode_claim(values) for values in fields.get("segment", ())),
            active=active[0] if active else None,
            cut=int(fields["cut"][0][0]) if "cut" in fields else NO_CUT,
            missing=_ranges_of(fields.get("missing", ())),
            given_up=_ranges_of(fields.get("given-up", ())),
            decided=_ranges_of(fields.get("decided", ())),
            aborted=tuple(LostEnd(*map(int, each)) for each in fields.get("aborted", ())),
            undecided=tuple(LostEnd(*map(int, each)) for each in fields.get("undecided", ())),
            snapshots=tuple(map(_snapshot_of, fields["snapshots"][0])) if "snapshots" in fields else (),
            topic_id=bytes.fromhex(fields["topic"][0][0]) if "topic" in fields else None,
            epochs_crc=_crc_of(fields["epochs"][0][0]) if "epochs" in fields else NO_CRC,
        )


def _ranges_of(lines: Iterable[Sequence[str]]) -> tuple[Range, ...]:
    return tuple((int(start), int(end)) for start, end in lines)


def _crc_text(crc: int) -> str:
    return "-" if crc == NO_CRC else f"{crc:08x}"


def _crc_of(text: str) -> int:
    return NO_CRC if text == "-" else int(text, 16)


def _snapshot_of(text: str) -> tuple[int, int]:
    offset, _, crc = text.partition(":")
    return int(offset), _crc_of(crc or "-")


def _claim_text(claim: SegmentClaim) -> str:
    return f"{claim.base_offset} {claim.end_offset} {claim.size} {' '.join(map(_crc_text, claim[3:]))}"


def decode_claim(values: Sequence[str]) -> SegmentClaim:
    base, end, size, index, timeindex, txnindex = values
    return SegmentClaim(int(base), int(end), int(size), _crc_of(index), _crc_of(timeindex), _crc_of(txnindex))


def read(disk: Disk, path: str) -> Manifest | None:
    """The manifest in a partition's directory; None if there is none. ManifestDamaged if it cannot be believed."""
    data = read_bytes(disk, path)
    return Manifest.decode(data) if data is not None else None


def read_bytes(disk: Disk, path: str) -> bytes | None:
    try:
        return disk.read(f"{path}/{FILE_NAME}")
    except FileNotFoundError:
        return None


def file_crc(disk: Disk, path: str) -> int:
    """Of a derived file; NO_CRC when there is none."""
    try:
        return crc32c(disk.read(path))
    except FileNotFoundError:
        return NO_CRC


def claim_of(
    disk: Disk, directory: str, base_offset: int, end_offset: int, size: int, txnindex_crc: int | None = None
) -> SegmentClaim:
    """The claim of a segment whose files are flushed. Reads the derived files whose checksum is not known."""
    stem = file_stem(directory, base_offset)
    crcs = [file_crc(disk, f"{stem}.{kind}") for kind in _DERIVED]
    claim = SegmentClaim(base_offset, end_offset, size, *crcs)
    return claim if txnindex_crc is None else claim._replace(txnindex_crc=txnindex_crc)


def give_up(manifest: Manifest, ranges: Sequence[Range]) -> Manifest:
    """These offsets are given up: transactions that are undecided because of them count as aborted."""
    ends = [each for each in manifest.undecided if any(start <= each.last_offset < end for start, end in ranges)]
    return manifest._replace(
        missing=without(manifest.missing, ranges),
        given_up=merged([*manifest.given_up, *ranges]),
        decided=merged([*manifest.decided, *ranges]),
        aborted=tuple(dict.fromkeys([*manifest.aborted, *ends])),
        undecided=tuple(each for each in manifest.undecided if each not in ends),
    )
