"""`ottla pipeline run` with a real Spark and a real broker: twice the same file, every record once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow.dataset as ds

from ottla import blocking
from ottla.client.embedded import TopicPartition

pytestmark = pytest.mark.timeout(600)

FILE = """\
name: orders
storage: file://{place}
configuration: {{spark.sql.shuffle.partitions: "2", spark.driver.memory: 512m}}
sources:
  orders:
    format: ottla
    options: {{kafka.bootstrap.servers: "{bootstrap}", subscribe: {orders}}}
    dead_letters: {{topic: {bad}, max_ratio: 0.5}}
schemas:
  orders: id int, amount int
  large: id int, amount int
transforms:
  picked: select key, to_json(value) as value from orders where value.amount > 10
  flat: select key, value.* from large
sinks:
  archive:
    from: flat
    format: parquet
    options: {{path: "file://{place}/parquet", files: 1}}
  large:
    from: picked
    format: ottla
    options: {{kafka.bootstrap.servers: "{bootstrap}", topic: {large}}}
"""


def records(bootstrap: str, topic: str) -> list[Any]:
    places = [TopicPartition(topic, number) for number in range(2)]
    found: list[Any] = []
    with blocking.Consumer(bootstrap_servers=bootstrap, group_id=None, isolation_level="read_committed") as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for some in consumer.getmany(timeout_ms=500).values():
                found += some
    return found


def ottla(*arguments: str) -> str:
    command = [sys.executable, "-m", "ottla", "pipeline", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_pipeline_is_run_twice_and_every_record_is_there_once(broker, create, tmp_path):
    orders, large, bad = create(2), create(2), create(2)
    place = tmp_path / "data"
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE.format(place=place, bootstrap=broker.bootstrap, orders=orders, large=large, bad=bad))

    def write(numbers: range) -> None:
        with blocking.Producer(broker.bootstrap) as producer:
            for number in numbers:
                value = json.dumps({"id": number, "amount": number}).encode()
                producer.send(orders, key=str(number).encode(), value=value)
            producer.flush()

    write(range(20))
    with blocking.Producer(broker.bootstrap) as producer:
        producer.send(orders, key=b"x", value=b"{not json", headers=[("trace", b"7")]).result()
    told = ottla("run", "--available-now", str(file))
    assert "large: batch 0, 21 rows" in told
    write(range(20, 30))
    ottla("run", "--available-now", str(file))

    expected = [str(number) for number in range(11, 30)]
    assert sorted(record.key.decode() for record in records(broker.bootstrap, large)) == expected
    table = ds.dataset(place / "parquet", partitioning="hive").to_table()
    assert sorted(table["key"].to_pylist()) == expected
    (letter,) = records(broker.bootstrap, bad)
    assert (letter.key, letter.value) == (b"x", b"{not json")
    headers = dict(letter.headers)
    assert headers["trace"] == b"7"
    assert headers["ottla.dlq.topic"] == orders.encode()

    status = ottla("status", str(file))
    assert "large: done" in status
    assert "orders_dead_letters: done" in status
    assert "group orders-large: 0 records behind in 2 partitions" in status
    write(range(30, 35))
    assert "group orders-large: 5 records behind" in ottla("status", str(file))
    described = subprocess.run(
        [sys.executable, "-m", "ottla", "groups", "describe", "orders-large", "-b", broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert orders in described
    assert Path(place / "spark.log").exists()

    # The records of some time once more, as a batch beside the checkpoint; run again, it writes nothing twice.
    for _ in range(2):
        span = ["--from", "2020-01-01", "--to", "2100-01-01"]
        ottla("run", str(file), "--sink", "large", "--sink", "archive", *span)
    again = [str(number) for number in range(11, 35)]
    assert sorted(record.key.decode() for record in records(broker.bootstrap, large)) == sorted(expected + again)
    (folder,) = (place / "parquet").glob("backfill=*")
    assert sorted(ds.dataset(folder).to_table()["key"].to_pylist()) == sorted(expected + again)
