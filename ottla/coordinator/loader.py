"""Loading a shard: its log is replayed into its state machine, in slices, so that other requests do not wait long.

First only keys and values are cut out of the batches, and the newest value of each key is kept, as compaction does:
overwritten values are never decoded. Then the newest records are decoded and replayed in their order. That order
matters only among the records of one group (or transaction), so they are kept in many dictionaries, by the name of the
group: a single dictionary would stall the loop whenever it grows.

Records of transactions wait for their marker. Records collected before them are replayed first, so that of two commits
the later one counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from ottla.coordinator.decision import ProducerIdAndEpoch
from ottla.coordinator.shard import BATCH_BYTES_MAX, Codec, Machine
from ottla.errors import ErrorCode, Refused
from ottla.runtime import Buffer
from ottla.wire import batch
from ottla.wire.records import iterate, read_varint

SLICE_RECORDS = 1000
"""How many records are read or replayed at a time: a few milliseconds of work."""
BUCKETS = 64

COMMIT_MARKER = b"\0\0\0\1"
_OPAQUE = batch.CODEC_MASK | batch.TRANSACTIONAL | batch.CONTROL


class Loader:
    """Its methods are iterators: each step is one slice of the work."""

    def __init__(self, machine: Machine, codec: Codec, log_start: int) -> None:
        self._machine = machine
        self._codec = codec
        self._newest: list[dict[bytes, bytes | None]] = [{} for _ in range(BUCKETS)]
        self.next_offset = log_start
        self.records = 0

    def feed(self, data: Buffer) -> Iterator[None]:
        """Take the whole batches of data that begins at `next_offset`."""
        data = bytes(data)
        view = memoryview(data)
        unpack, header_bytes = batch.HEADER.unpack_from, batch.HEADER_BYTES
        position, end = 0, len(data)
        taken = 0
        while end - position >= header_bytes:
            base_offset, length, _, magic, crc, attributes, last, *_, count = unpack(data, position)
            stop = position + length + batch.LENGTH_OVERHEAD
            if stop > end and length > 0:
                break
            if magic != batch.MAGIC or crc32c(view[position + batch.CRC_FROM : stop]) != crc:
                raise Refused(ErrorCode.corrupt_message, f"the batch at offset {base_offset} is damaged")
            if attributes & _OPAQUE:
                yield from self._open(view[position:stop])
            else:
                self._collect(data, position + header_bytes, stop, count)
            self.next_offset = base_offset + last + 1
            position = stop
            taken += count
            if taken >= SLICE_RECORDS:
                taken = 0
                yield

    def _collect(self, data: bytes, position: int, end: int, count: int) -> None:
        """The usual batch: neither compressed nor transactional. We wrote it and its checksum is right: few checks."""
        newest = self._newest
        try:
            for _ in range(count):
                size, position = read_varint(data, position)
                stop = position + size
                position += 1  # attributes
                while data[position] > 0x7F:
                    position += 1
                position += 1  # difference in time
                while data[position] > 0x7F:
                    position += 1
                position += 1  # difference in offset
                size = data[position]
                if size < 0x80:
                    size >>= 1
                    position += 1
                else:
                    size, position = read_varint(data, position)
                key = data[position : position + size]
                position += size
                size, position = read_varint(data, position)
                bucket = newest[hash(key[4 : 4 + (key[2] << 8 | key[3])]) % BUCKETS]  # _name(key), without a call
                bucket.pop(key, None)  # so that it is inserted again at the end
                bucket[key] = data[position : position + size] if size >= 0 else None
                position = stop
        except (IndexError, Refused):
            position = -1
        if position != end:
            raise Refused(ErrorCode.corrupt_message, "a batch does not have the records of its header")
        self.records += count

    def _open(self, view: memoryview) -> Iterator[None]:
        """A batch that is compressed, transactional or a control batch."""
        header = batch.read_header(view)
        producer = None
        if header.is_control or header.is_transactional:
            yield from self.replay()
            producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        for record in iterate(view, bytes_max=BATCH_BYTES_MAX):
            self.records += 1
            if record.key is None:
                continue
            if header.is_control:
                self._machine.replay_end(header.producer_id, committed=record.key == COMMIT_MARKER)
            elif producer is not None:
                self._replay(record.key, record.value, producer)
            else:
                bucket = self._newest[hash(_name(record.key)) % BUCKETS]
                bucket.pop(record.key, None)
                bucket[record.key] = record.value

    def replay(self) -> Iterator[None]:
        """Replay the collected records."""
        number = 0
        for index, bucket in enumerate(self._newest):
            self._newest[index] = {}
            for key, value in bucket.items():
                self._replay(key, value, None)
                number += 1
                if not number % SLICE_RECORDS:
                    yield

    def _replay(self, data: bytes, value: bytes | None, producer: ProducerIdAndEpoch | None) -> None:
        key = self._codec.decode_key(data)
        if key is not None:
            self._machine.replay(key, None if value is None else self._codec.decode_value(key, value), producer)


def _name(key: bytes) -> bytes:
    """The group id or transactional id: every key begins with two bytes for its type, and then this string."""
    return key[4 : 4 + (key[2] << 8 | key[3])]
