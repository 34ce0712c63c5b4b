"""`ottla pipeline run` with a real Spark and a real broker: twice the same file, every record once."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow.dataset as ds

from ottla import blocking
from ottla.client.admin import NewTopic
from ottla.client.values import TopicPartition
from ottla.local.waiting import wait_for

pytestmark = pytest.mark.timeout(1800)

FILE = """\
name: orders
storage: file://{storage}
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
    options: {{path: "file://{storage}/parquet", files: 1}}
  large:
    from: picked
    format: ottla
    options: {{kafka.bootstrap.servers: "{bootstrap}", topic: {large}}}
"""


def records(bootstrap: str, topic: str) -> list[Any]:
    partitions = [TopicPartition(topic, number) for number in range(2)]
    found: list[Any] = []
    with blocking.Consumer(bootstrap_servers=bootstrap, group_id=None, isolation_level="read_committed") as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for some in consumer.getmany(timeout_ms=500).values():
                found += some
    return found


def ottla(*arguments: str) -> str:
    command = [sys.executable, "-m", "ottla", "pipeline", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_pipeline_is_run_twice_and_every_record_is_there_once(broker, create, tmp_path):
    orders, large, bad = create(2), create(2), create(2)
    storage = tmp_path / "data"
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE.format(storage=storage, bootstrap=broker.bootstrap, orders=orders, large=large, bad=bad))

    def write(numbers: range) -> None:
        with blocking.Producer(broker.bootstrap) as producer:
            for number in numbers:
                value = json.dumps({"id": number, "amount": number}).encode()
                producer.send(orders, key=str(number).encode(), value=value)
            producer.flush()

    write(range(20))
    with blocking.Producer(broker.bootstrap) as producer:
        producer.send(orders, key=b"x", value=b"{not json", headers=[("trace", b"7")]).result()
    reported = ottla("run", "--available-now", str(file))
    assert "large: batch 0, 21 rows" in reported
    write(range(20, 30))
    ottla("run", "--available-now", str(file))

    expected = [str(number) for number in range(11, 30)]
    assert sorted(record.key.decode() for record in records(broker.bootstrap, large)) == expected
    table = ds.dataset(storage / "parquet", partitioning="hive").to_table()
    assert sorted(table["key"].to_pylist()) == expected
    (dead,) = records(broker.bootstrap, bad)
    assert (dead.key, dead.value) == (b"x", b"{not json")
    headers = dict(dead.headers)
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
    assert Path(storage / "spark.log").exists()

    # The records of some time once more, as a batch beside the checkpoint; run again, it writes nothing twice.
    for _ in range(2):
        span = ["--from", "2020-01-01", "--to", "2100-01-01"]
        ottla("run", str(file), "--sink", "large", "--sink", "archive", *span)
    again = [str(number) for number in range(11, 35)]
    assert sorted(record.key.decode() for record in records(broker.bootstrap, large)) == sorted(expected + again)
    (folder,) = (storage / "parquet").glob("backfill=*")
    assert sorted(ds.dataset(folder).to_table()["key"].to_pylist()) == sorted(expected + again)


def _are_gone(admin: blocking.Admin, names: list[str]) -> bool:
    return not {*names} & {each.name for each in admin.list_topics()}


def test_a_dropped_pipeline_starts_again_with_recreated_topics(broker, create, tmp_path):
    orders, large, bad = create(2), create(2), create(2)
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE.format(storage=tmp_path, bootstrap=broker.bootstrap, orders=orders, large=large, bad=bad))
    value = json.dumps({"id": 1, "amount": 20}).encode()
    for count in (3, 5):
        with blocking.Producer(broker.bootstrap) as producer:
            for _ in range(count):
                producer.send(orders, value=value).result()
        ottla("run", "--available-now", "--sink", "large", str(file))
        assert len(records(broker.bootstrap, large)) == count
        with blocking.Admin(broker.bootstrap) as admin:
            names = [orders, large]
            admin.delete_topics(names)
            wait_for(functools.partial(_are_gone, admin, names), "the topics' end")
            admin.create_topics([NewTopic(name, 2) for name in names])
        assert "large: removed" in ottla("drop", "--yes", str(file))


EVENTS = """\
name: events
storage: file://{storage}
configuration: {{spark.sql.shuffle.partitions: "1", spark.driver.memory: 512m}}
sources:
  orders:
    format: ottla
    options: {{kafka.bootstrap.servers: "{bootstrap}", subscribe: {orders}}}
    watermark: {{column: value.at, delay: 10 minutes}}
    deduplicate: value.id
  payments:
    format: ottla
    options: {{kafka.bootstrap.servers: "{bootstrap}", subscribe: {payments}}}
    watermark: {{column: value.paid_ms, unit: milliseconds, as: paid, delay: 10 minutes}}
schemas:
  orders: id int, product string, at timestamp
  payments: order_id int, paid_ms long
transforms:
  counted: |
    select concat(value.product, ' ', date_format(window(at, '10 minutes').start, 'HH:mm')) as key,
           cast(count(*) as string) as value
    from orders group by window(at, '10 minutes'), value.product
  visits: |
    select value.product as product, count(*) as n
    from orders group by session_window(at, '5 minutes'), value.product
  joined: |
    select cast(o.value.id as string) as key, cast(p.paid as string) as value
    from orders o join payments p
      on o.value.id = p.value.order_id and p.paid between o.at and o.at + interval 10 minutes
sinks:
  counts:
    from: counted
    format: ottla
    mode: update
    options: {{kafka.bootstrap.servers: "{bootstrap}", topic: {counts}}}
  sessions:
    from: visits
    format: parquet
    options: {{path: "file://{storage}/sessions", files: 1}}
  paid:
    from: joined
    format: ottla
    options: {{kafka.bootstrap.servers: "{bootstrap}", topic: {paid}}}
"""


def send(bootstrap: str, topic: str, values: list[dict[str, Any]]) -> None:
    with blocking.Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, value=json.dumps(value).encode(), partition=0)
        producer.flush()


def test_windows_sessions_joins_and_duplicates_go_by_the_time_in_the_payload(broker, create, tmp_path):
    topics = {name: create(2) for name in ("orders", "payments", "counts", "paid")}
    storage = tmp_path / "data"
    file = tmp_path / "pipeline.yaml"
    file.write_text(EVENTS.format(storage=storage, bootstrap=broker.bootstrap, **topics))
    day = "2026-11-17T"
    orders = [
        {"id": 1, "product": "tea", "at": f"{day}10:01:00Z"},
        {"id": 2, "product": "tea", "at": f"{day}10:02:00Z"},
        {"id": 2, "product": "tea", "at": f"{day}10:02:00Z"},  # once more
        {"id": 3, "product": "jam", "at": f"{day}10:09:00Z"},
        {"id": 4, "product": "tea", "at": f"{day}10:12:00Z"},
    ]
    send(broker.bootstrap, topics["orders"], orders)
    ten = 1_794_909_600_000  # 2026-11-17T10:00:00Z
    minute = 60_000
    payments = [{"order_id": 1, "paid_ms": ten + 3 * minute}, {"order_id": 3, "paid_ms": ten + 30 * minute}]
    send(broker.bootstrap, topics["payments"], payments)
    ottla("run", "--available-now", str(file))
    later = [{"id": 5, "product": "tea", "at": f"{day}10:14:00Z"}, {"id": 6, "product": "end", "at": f"{day}12:00:00Z"}]
    send(broker.bootstrap, topics["orders"], later)
    send(broker.bootstrap, topics["payments"], [{"order_id": 9, "paid_ms": ten + 130 * minute}])
    ottla("run", "--available-now", str(file))
    send(broker.bootstrap, topics["orders"], [{"id": 7, "product": "end", "at": f"{day}14:00:00Z"}])
    ottla("run", "--available-now", str(file))

    settings = json.loads((storage / "checkpoints/counts/offsets/0").read_text().splitlines()[1])["conf"]
    assert settings["spark.sql.shuffle.partitions"] == "1", "the file's own setting wins"
    reported: dict[str, list[int]] = {}
    for record in records(broker.bootstrap, topics["counts"]):
        reported.setdefault(record.key.decode(), []).append(int(record.value))
    assert reported == {"tea 10:00": [2], "jam 10:00": [1], "tea 10:10": [1, 2], "end 12:00": [1], "end 14:00": [1]}
    visits = ds.dataset(storage / "sessions", partitioning="hive").to_table().to_pylist()
    assert sorted((row["product"], row["n"]) for row in visits) == [("end", 1), ("jam", 1), ("tea", 2), ("tea", 2)]
    assert [(each.key, each.value) for each in records(broker.bootstrap, topics["paid"])] == [
        (b"1", b"2026-11-17 10:03:00")
    ]


FAILING = """\
name: failing
storage: file://{storage}
configuration: {{spark.sql.shuffle.partitions: "1", spark.driver.memory: 512m}}
restart: {{limit: 1, backoff: 1 second}}
sources:
  orders:
    format: ottla
    options: {{kafka.bootstrap.servers: "{bootstrap}", subscribe: {orders}}}
schemas:
  orders: id int
transforms:
  good: select key, to_json(value) as value from orders
  bad: select key, cast(raise_error('it is broken') as string) as value from orders
  wrong: select key, nothing as value from orders
sinks:
  fine: {{from: good, format: ottla, options: {{kafka.bootstrap.servers: "{bootstrap}", topic: {fine}}}}}
  broken: {{from: bad, format: ottla, options: {{kafka.bootstrap.servers: "{bootstrap}", topic: {fine}}}}}
  mistaken: {{from: wrong, format: ottla, options: {{kafka.bootstrap.servers: "{bootstrap}", topic: {fine}}}}}
"""


def test_a_query_that_fails_leaves_the_others_running_and_sigterm_to_all_processes_stops_them(broker, create, tmp_path):
    orders, fine = create(2), create(2)
    file = tmp_path / "pipeline.yaml"
    file.write_text(FAILING.format(storage=tmp_path / "data", bootstrap=broker.bootstrap, orders=orders, fine=fine))
    send(broker.bootstrap, orders, [{"id": 1}])
    said = tmp_path / "said.txt"
    with said.open("wb") as output:
        command = [sys.executable, "-m", "ottla", "pipeline", "run", str(file)]
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_for(lambda: "broken: failed" in said.read_text() or process.poll() is not None, "a failure", 480)
        send(broker.bootstrap, orders, [{"id": 2}])
        wait_for(
            lambda: len(records(broker.bootstrap, fine)) == 2 or process.poll() is not None, "the other query", 240
        )
        assert process.poll() is None, said.read_text()
        assert "fine: running" in ottla("status", str(file))
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    reported = said.read_text()
    line = (
        file.read_text().splitlines().index(next(each for each in file.read_text().splitlines() if "wrong: s" in each))
    )
    assert (
        "mistaken: failed: A column, variable, or function parameter with name `nothing` cannot be resolved."
        in reported
    )
    assert f"({file}:{line + 1})" in reported
    assert "broken: it is broken" in reported
    assert "it is started again in 1 s" in reported
    assert reported.count("broken: failed: it is broken") == 1
    assert process.returncode == 1, reported  # two have failed
    status = ottla("status", str(file))
    assert "fine: stopped" in status
    assert "broken: failed" in status
    assert sorted(each.value for each in records(broker.bootstrap, fine)) == [b'{"id":1}', b'{"id":2}']


@pytest.mark.timeout(1500)
def test_the_first_pipeline_works_at_once_and_a_malformed_record_is_named(broker, tmp_path, monkeypatch):
    """As after an installation: init, and the commands that init names."""
    monkeypatch.setenv("BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVERS", broker.bootstrap)
    file = tmp_path / "first.yaml"
    steps = json.loads(ottla("init", str(file), "--json"))["next"]
    reported = [typed(step) for step in steps]
    assert [json.loads(line)["product"] for line in reported[2].stdout.splitlines()] == ["lamp", "bicycle", "table"], (
        reported
    )

    bad = subprocess.run(
        [sys.executable, "-m", "ottla", "produce", "first-orders"],
        input=b"two oranges\n",
        capture_output=True,
        check=False,
    )
    assert bad.returncode == 0, bad.stderr
    failed = typed(f"{steps[1]} --sink large", status=1)
    said = failed.stdout + failed.stderr
    assert "does not fit the schema of orders: topic first-orders, partition 0, offset 6, value two oranges" in said
    assert "dead_letters: {topic: NAME} on the source puts such records aside" in said

    file.write_text(file.read_text().replace("# dead_letters", "dead_letters"))
    typed(steps[1])
    [dead] = typed("ottla consume first-bad -e").stdout.splitlines()
    assert dead == "two oranges"


def typed(line: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == status, f"{line}\n{done.stdout}{done.stderr}"
    return done
