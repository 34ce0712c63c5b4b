"""Change data capture: publication, logical slot, snapshot, and changes between two positions of the database.

The slot keeps the write-ahead log from a position on until we say that we are done with it; we only ever *peek*, and
move the slot on when Spark has committed, so that a batch can be read again. A batch is all transactions whose commit
ends in (start, end], where start and end are themselves ends of commits, or the slot's first position.

Hand-over from the snapshot. Making the slot exports a snapshot of exactly the slot's first position X, for as long as
the connection that made it stays open. Rows read with it, and changes after X, are each row and change once. If the
batch has to be read again later (the driver died), that snapshot is gone. Then a new one is taken at some Y > X, and
rows whose *first* change after X is an insertion are left out: they were not there at X, and come as changes. A row
that was updated in between shows its newer values already in the snapshot, and again with the update; none is lost,
none is inserted twice. The same way a slot that was there before is taken over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from psycopg import errors, sql

from ottla.spark.connectors.envelope import Captured, Keys, Origin, captured, inserted_first, key_text, snapshot_record
from ottla.spark.connectors.pgoutput import Relation, RelationColumn, Transaction, lsn_number, lsn_text, transactions
from ottla.spark.connectors.postgres_options import CaptureOptions
from ottla.spark.options import BadOption

T = TypeVar("T")
Table = tuple[str, str]

IN_USE_WAIT_S: Final = 30.0
"""For a task of the same query that has not ended yet; another reader of the slot keeps it for longer."""
FLUSH_WAIT_S: Final = 10.0
IDLE_WAL_BYTES: Final = 16 * 2**20
"""So much of the log that holds nothing for us is let go of, by an empty batch."""
PLUGIN: Final = "pgoutput"
SESSION: Final = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601 -c extra_float_digits=1 -c bytea_output=hex"
)
"""The same text form of values, whatever the database's defaults are."""


class LostSlot(RuntimeError):
    """Changes between our position and the slot's are gone for good."""


@dataclass(frozen=True, slots=True)
class SlotState:
    confirmed: int
    active_pid: int | None
    status: str | None
    retained_bytes: int


@dataclass(slots=True)
class Exported:
    """A snapshot that others may read with while this connection is open."""

    connection: psycopg.Connection[Any]
    name: str
    lsn: int
    closed: bool = field(default=False)

    def close(self) -> None:
        self.connection.close()
        self.closed = True


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, options=SESSION, application_name="ottla-postgres-cdc")


class Capture:
    def __init__(self, options: CaptureOptions, connection: psycopg.Connection[Any]) -> None:
        self._options = options
        self._db = connection

    # What has to be there

    def prepare(self) -> None:
        """Check the server and the tables; make the publication, which has to be older than the slot."""
        level = self._one("select current_setting('wal_level')")
        if level != "logical":
            raise BadOption(f"the database has wal_level={level}; ALTER SYSTEM SET wal_level='logical' and a restart")
        for table in self._options.tables:
            self.relation(table)
        published = self._rows("select schemaname, tablename from pg_publication_tables where pubname = %s", self._pub)
        if not published and not self._one("select count(*) from pg_publication where pubname = %s", self._pub):
            names = sql.SQL(", ").join(sql.Identifier(*table) for table in self._options.tables)
            statement = sql.SQL("create publication {} for table {} with (publish_via_partition_root = true)")
            self._db.execute(statement.format(sql.Identifier(self._pub), names))
            return
        missing = [f"{schema}.{table}" for schema, table in self._options.tables if (schema, table) not in published]
        if missing:
            raise BadOption(
                f"the publication {self._pub} is there and lacks {', '.join(missing)}: "
                f"ALTER PUBLICATION {self._pub} ADD TABLE {', '.join(missing)}"
            )

    def relation(self, table: Table) -> Relation:
        """As the catalogue has it now. A table that could not be captured is refused."""
        name = ".".join(table)
        found = self._rows(
            "select c.oid::bigint, c.relreplident::text from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')",
            *table,
        )
        if not found:
            raise BadOption(f"there is no table {name}")
        oid, identity = found[0]
        columns = self._rows(
            "select a.attname, a.atttypid::bigint, "
            "coalesce(i.indisprimary, false), coalesce(r.indisreplident, false) from pg_attribute a "
            "left join pg_index i on i.indrelid = a.attrelid and i.indisprimary and a.attnum = any(i.indkey) "
            "left join pg_index r on r.indrelid = a.attrelid and r.indisreplident and a.attnum = any(r.indkey) "
            "where a.attrelid = %s and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' order by a.attnum",
            oid,
        )
        by = 3 if identity == "i" else 2
        keyed = any(column[by] for column in columns)
        if identity == "n" or not keyed:
            raise BadOption(
                f"{name} has no replica identity that names its rows (a primary key is missing, or REPLICA IDENTITY "
                f"is NOTHING), so updates and deletes are not published: ALTER TABLE {name} ADD PRIMARY KEY (…), or "
                f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX …"
            )
        made = tuple(RelationColumn(column[0], column[1], bool(column[by])) for column in columns)
        return Relation(oid, table[0], table[1], identity, made)

    def keys(self) -> Keys:
        """Where the replica identity is the full row, the key is the primary key as of now."""
        relations = [self.relation(table) for table in self._options.tables]
        primary = {
            (each.schema, each.table): tuple(column.name for column in each.columns if column.identifies)
            for each in relations
        }
        return Keys(primary)

    def origin(self) -> Origin:
        database = self._one("select current_database()")
        return Origin(self._options.prefix or database, database)

    # The slot

    def slot(self) -> SlotState | None:
        found = self._rows(
            "select plugin, database = current_database(), confirmed_flush_lsn::text, active_pid, wal_status, "
            "coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint "
            "from pg_replication_slots where slot_name = %s",
            self._options.slot,
        )
        if not found:
            return None
        plugin, here, confirmed, pid, status, retained = found[0]
        if plugin != PLUGIN or not here:
            raise BadOption(f"the slot {self._options.slot} is of another plugin or database; give slot= another name")
        return SlotState(lsn_number(confirmed or "0/0"), pid, status, retained)

    def make_slot(self) -> int:
        """Without a snapshot: changes from now on."""
        self._db.execute("select pg_create_logical_replication_slot(%s, %s)", (self._options.slot, PLUGIN))
        made = self.slot()
        assert made is not None
        return made.confirmed

    def make_slot_exporting(self) -> Exported:
        connection = psycopg.connect(self._options.url, autocommit=True, replication="database")
        name = sql.Identifier(self._options.slot).as_bytes(connection)
        # A connection for replication takes plain queries only.
        made = connection.pgconn.exec_(b"CREATE_REPLICATION_SLOT " + name + b" LOGICAL pgoutput (SNAPSHOT 'export')")
        if made.ntuples != 1:
            reason = made.get_error_message() or made.error_message.decode(errors="replace")
            connection.close()
            raise BadOption(f"the slot {self._options.slot} cannot be made: {reason.strip()}")
        lsn, snapshot = made.get_value(0, 1), made.get_value(0, 2)
        assert lsn is not None
        assert snapshot is not None
        return Exported(connection, snapshot.decode(), lsn_number(lsn.decode()))

    def checked_slot(self, start: int) -> SlotState:
        state = self.slot()
        name = self._options.slot
        options = "start again: another checkpoint, and snapshot=initial to read the tables again"
        if state is None:
            raise LostSlot(f"the slot {name} is gone, and with it all changes after {lsn_text(start)}; {options}")
        if state.status == "lost":
            raise LostSlot(
                f"the slot {name} kept more of the log than max_slot_wal_keep_size allows, and the server let go of "
                f"changes after {lsn_text(start)}; drop it (SELECT pg_drop_replication_slot('{name}')) and {options}"
            )
        if state.confirmed > start:
            raise LostSlot(
                f"the slot {name} stands at {lsn_text(state.confirmed)}, after our position {lsn_text(start)}: another "
                f"query reads it too, or it was made again. Each query needs a slot of its own; {options}"
            )
        return state

    def advance(self, lsn: int) -> None:
        """All up to there is done with."""
        state = self.slot()
        if state is not None and state.confirmed < lsn:
            statement: LiteralString = "select pg_replication_slot_advance(%s, %s::pg_lsn)"
            self._patiently(statement, self._options.slot, lsn_text(lsn))

    def position(self) -> int:
        """Up to where the log is on the server's disk."""
        return lsn_number(self._one("select pg_current_wal_flush_lsn()::text"))

    def end_after(self, start: int, changes_max: int | None, target: int | None) -> int:
        """Where a batch from there ends: after whole transactions of about so many changes. `start`: nothing new."""
        self.checked_slot(start)
        self.advance(start)
        position = self.position()
        upto = None if target is None else lsn_text(target)
        found = self._patiently(
            "select max(lsn)::text from pg_logical_slot_peek_binary_changes"
            "(%s, %s, %s, 'proto_version', '1', 'publication_names', %s) where get_byte(data, 0) = 67",
            *(self._options.slot, upto, changes_max, self._quoted_pub()),
        )[0][0]
        if found is not None:
            return max(start, lsn_number(found))
        if target is None and position - start > IDLE_WAL_BYTES:
            return position
        return start

    # Rows and changes

    def changes(self, start: int, end: int) -> Iterator[Captured]:
        origin, keys = self.origin(), self.keys()
        for transaction in self._transactions(start, end):
            yield from captured(transaction, origin, keys, truncates=self._options.truncates)

    def snapshot(self, exported: str | None, lsn: int, at: datetime) -> Iterator[Captured]:
        """All rows of all tables as of one moment, for a stream of changes that begins at `lsn`; -1: for none. `at` is
        the timestamp of the records."""
        exact = self._begin_snapshot(exported)
        origin, keys = self.origin(), self.keys()
        left_out = {} if exact or lsn < 0 else self._inserted_since(lsn, keys)
        for table in self._options.tables:
            relation = self.relation(table)
            names = sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns)
            query = sql.SQL("copy (select {} from {}) to stdout").format(names, sql.Identifier(*table))
            absent = left_out.get(table, set())
            with self._db.cursor() as cursor, cursor.copy(query) as copy:
                copy.set_types(["text"] * len(relation.columns))
                for row in copy.rows():
                    if not absent or key_text(relation, row, keys.of(relation)) not in absent:
                        yield snapshot_record(relation, row, origin, keys, at, max(lsn, 0))
        self._db.execute("commit")

    def _begin_snapshot(self, exported: str | None) -> bool:
        """True if it is the exported one."""
        begin: LiteralString = "begin isolation level repeatable read read only"
        self._db.execute(begin)
        if exported is not None:
            try:
                self._db.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(exported)))
                return True
            except (errors.InvalidParameterValue, errors.UndefinedObject):
                self._db.execute("rollback")
                self._db.execute(begin)
        return False

    def _inserted_since(self, lsn: int, keys: Keys) -> dict[Table, set[str]]:
        # The first query fixes the snapshot of the transaction; all of it has to be on disk before the log is read.
        seen = lsn_number(self._one("select pg_current_wal_insert_lsn()::text"))
        with connect(self._options.url) as other:
            beside = Capture(self._options, other)
            deadline = time.monotonic() + FLUSH_WAIT_S
            while beside.position() < seen:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the server has not written its log up to {lsn_text(seen)} to disk")
                time.sleep(0.02)
            beside.checked_slot(lsn)
            found = [change for each in beside._transactions(lsn, None) for change in each.changes]
        return inserted_first(found, keys)

    def _transactions(self, start: int, end: int | None) -> Iterator[Transaction]:
        """Whole ones, by where their commits end."""
        self.checked_slot(start)
        upto = None if end is None else lsn_text(end)
        rows = self._patiently(
            "select data from pg_logical_slot_peek_binary_changes"
            "(%s, %s, null, 'proto_version', '1', 'publication_names', %s)",
            *(self._options.slot, upto, self._quoted_pub()),
        )
        for transaction in transactions(row[0] for row in rows):
            if transaction.end_lsn > start and (end is None or transaction.end_lsn <= end):
                yield transaction

    # Speaking to the database

    @property
    def _pub(self) -> str:
        return self._options.publication

    def _quoted_pub(self) -> str:
        return '"' + self._pub.replace('"', '""') + '"'

    def _rows(self, query: LiteralString, *values: object) -> list[Any]:
        with self._db.cursor(binary=True) as cursor:
            found: list[Any] = cursor.execute(query, values or None).fetchall()
            return found

    def _one(self, query: LiteralString, *values: object) -> Any:
        return self._rows(query, *values)[0][0]

    def _patiently(self, query: LiteralString, *values: object) -> list[Any]:
        """A slot serves one connection at a time; a task that was just given up may still have it."""
        deadline = time.monotonic() + IN_USE_WAIT_S
        while True:
            try:
                return self._rows(query, *values)
            except errors.ObjectInUse as problem:
                if time.monotonic() > deadline:
                    raise LostSlot(f"the slot {self._options.slot} is in use: {problem}") from None
                time.sleep(0.1)


def drop_slot(options: Mapping[str, str]) -> str:
    """Remove the replication slot and the publication of a capture from the database."""
    given = {name.lower(): value for name, value in options.items()}
    slot = given["slot"]
    publication = given.get("publication") or slot
    with psycopg.connect(given["url"], autocommit=True) as db:
        there = db.execute("select count(*) from pg_replication_slots where slot_name = %s", (slot,)).fetchone()
        if there and there[0]:
            db.execute("select pg_drop_replication_slot(%s)", (slot,))
        db.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(publication)))
    return f"{slot}: removed the replication slot and the publication {publication}"
