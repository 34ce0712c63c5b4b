"""Leader epoch cache (KIP-101): which leader epoch began at which offset. Replicas compare it to find the divergence.

Each epoch owns the offsets from its start to the next one's start, the latest one up to the log end. Pure
memory; the log writes it out as `leader-epoch-checkpoint` before its recovery point passes an epoch's start.
What a crash loses is therefore still in the headers of the batches that recovery reads again.
"""

from __future__ import annotations

from ottla.errors import Fault
from ottla.log.checkpoints import format_lines, read_lines
from ottla.runtime import Disk

FILE_NAME = "leader-epoch-checkpoint"
NO_EPOCH = -1
NO_OFFSET = -1


class EpochsFile:
    """Writes the epochs of a log, in threads and on the loop. Each write takes the newest epochs, and checks again
    after it: a sync that waited for its thread while the log was truncated does not restore truncated epochs."""

    __slots__ = ("_disk", "_latest", "_path")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._latest = b""

    def hand_out(self, epochs: LeaderEpochs) -> bytes:
        """This is to be written from now on."""
        self._latest = epochs.encode()
        return self._latest

    def write(self) -> None:
        """Blocks. Durable on return."""
        written = None
        while written is not self._latest:
            written = self._latest
            self._disk.write_atomic(self._path, written)

    def save(self, epochs: LeaderEpochs) -> None:
        """Blocks. The changes are durable on return."""
        if epochs.dirty:
            handed_out = self.hand_out(epochs)
            self.write()
            self.written(handed_out, epochs)

    def written(self, handed_out: bytes, epochs: LeaderEpochs) -> None:
        """Nothing is left to be written, if nothing has changed since."""
        if handed_out is self._latest and handed_out == epochs.encode():
            epochs.dirty = False


class LeaderEpochs:
    """Epochs and their start offsets, both strictly ascending."""

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries or ():
            self.assign(epoch, start)
        self.dirty = False

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` begins at `start_offset`. What contradicts that is another history, and goes."""
        epochs, starts = self._epochs, self._starts
        if epoch < 0 or (epochs and epoch == epochs[-1] and start_offset >= starts[-1]):
            return
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self.dirty = True

    def truncate_from_end(self, log_end: int) -> None:
        """The log now ends at `log_end`: epochs that began there or later have no record in it."""
        while self._starts and self._starts[-1] >= log_end:
            self._starts.pop()
            self._epochs.pop()
            self.dirty = True

    def truncate_from_start(self, log_start: int) -> None:
        """The log now starts at `log_start`, inside whichever epoch owns that offset."""
        starts = self._starts
        gone = 0
        while gone + 1 < len(starts) and starts[gone + 1] <= log_start:
            gone += 1
        if gone or (starts and starts[0] < log_start):
            del self._epochs[:gone], starts[:gone]
            starts[0] = max(starts[0], log_start)
            self.dirty = True

    def clear(self) -> None:
        self.dirty = self.dirty or bool(self._epochs)
        self._epochs.clear()
        self._starts.clear()

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote `offset`."""
        for epoch, start in zip(reversed(self._epochs), reversed(self._starts), strict=True):
            if start <= offset:
                return epoch
        return NO_EPOCH

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest known epoch that is not above `epoch`, and where it ended (OffsetForLeaderEpoch).

        An epoch older than all known ones ended where the first known one starts; one newer than all is
        unknown.
        """
        if epoch == self.latest and epoch != NO_EPOCH:
            return epoch, log_end
        floor = NO_EPOCH
        for known, start in zip(self._epochs, self._starts, strict=True):
            if known > epoch:
                return (epoch if floor == NO_EPOCH else floor), start
            floor = known
        return NO_EPOCH, NO_OFFSET

    def encode(self) -> bytes:
        return format_lines(f"{epoch} {start}" for epoch, start in self.entries)

    @classmethod
    def read(cls, disk: Disk, directory: str) -> LeaderEpochs | None:
        """The epochs of the checkpoint; None if there is no file. A damaged one is a Fault: it can be rebuilt."""
        path = f"{directory}/{FILE_NAME}"
        remedy = "It can be rebuilt from the log."
        lines = read_lines(disk, path, 2, remedy)
        if lines is None:
            return None
        try:
            entries = [(int(epoch), int(start)) for epoch, start in lines]
        except ValueError as problem:
            raise Fault(f"The checkpoint {path} is damaged: {problem}. {remedy}") from problem
        epochs = cls(entries)
        if epochs.entries != entries:
            raise Fault(f"The checkpoint {path} is damaged: its epochs do not ascend. {remedy}")
        return epochs
