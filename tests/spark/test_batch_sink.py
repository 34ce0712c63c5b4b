"""Update mode into topics, and several sinks in one batch: exactly once, through `foreachBatch`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

from ottla import blocking
from ottla.spark import BatchSink, ParquetEpochs
from ottla.spark.options import BadOption
from tests.spark.conftest import Create
from tests.spark.test_sink import committed, fill, numbers, once

pytestmark = pytest.mark.timeout(300)


def run(spark: Any, bootstrap: str, source: str, checkpoint: Path, each: Any, *, mode: str = "append") -> None:
    """Numbers, counted by their last digit if in update mode, in batches of 100."""
    at = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    frame = spark.readStream.format("ottla").options(**at, subscribe=source).load().select("key", "value")
    if mode == "update":
        frame = frame.selectExpr("substr(cast(value as string), -1) as key").groupBy("key").count()
        frame = frame.selectExpr("key", "cast(count as string) as value")
    writer = frame.writeStream.outputMode(mode).foreachBatch(each).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def counts(bootstrap: str, topic: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for _, key, value, _ in committed(bootstrap, topic):
        found[(key or b"").decode()].append(int(value or b""))
    return dict(found)


def uncommit(checkpoint: Path) -> None:
    """As if the driver had died after it committed the last batch, and before it noted that."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_counts_in_update_mode_are_written_once_each(spark, broker, create: Create, tmp_path):
    source, sink = create(2), create(1)
    each = BatchSink("ottla", {"kafka.bootstrap.servers": broker.bootstrap, "topic": sink})
    fill(broker.bootstrap, source, 250)
    run(spark, broker.bootstrap, source, tmp_path / "cp", each, mode="update")
    before = counts(broker.bootstrap, sink)
    assert {key: values[-1] for key, values in before.items()} == {str(digit): 25 for digit in range(10)}
    uncommit(tmp_path / "cp")
    fill(broker.bootstrap, source, 50, first=250)
    run(spark, broker.bootstrap, source, tmp_path / "cp", each, mode="update")
    after = counts(broker.bootstrap, sink)
    assert {key: values[-1] for key, values in after.items()} == {str(digit): 30 for digit in range(10)}
    for key, values in after.items():
        assert values == sorted(set(values)), key  # each count once, and none goes back
        assert values[: len(before[key])] == before[key]


def test_a_batch_without_rows_counts_too(spark, broker, create: Create, tmp_path):
    source, sink = create(2), create(1)
    each = BatchSink("ottla", {"kafka.bootstrap.servers": broker.bootstrap, "topic": sink})
    fill(broker.bootstrap, source, 150)
    at = {"kafka.bootstrap.servers": broker.bootstrap, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "50"}
    frame = spark.readStream.format("ottla").options(**at, subscribe=source).load()
    some = frame.selectExpr("key", "value").where("cast(cast(value as string) as int) >= 140")
    writer = some.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "cp"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(numbers(broker.bootstrap, sink)) == list(range(140, 150))


def test_two_sinks_of_one_batch_need_names(spark, broker, create: Create, tmp_path):
    source, one, other = create(2), create(1), create(1)
    fill(broker.bootstrap, source, 150)
    at = {"kafka.bootstrap.servers": broker.bootstrap}

    def both(*names: dict[str, str]) -> Any:
        sinks = [
            BatchSink("ottla", {**at, "topic": topic, **name}) for topic, name in zip((one, other), names, strict=True)
        ]

        def each(batch: Any, number: int) -> None:
            for sink in sinks:
                sink(batch, number)

        return each

    with pytest.raises(Exception, match="is written twice under the name"):
        run(spark, broker.bootstrap, source, tmp_path / "cp", both({}, {}))
    run(spark, broker.bootstrap, source, tmp_path / "cp", both({}, {"txnAppId": other}))
    assert numbers(broker.bootstrap, one) == once(150)
    assert numbers(broker.bootstrap, other) == once(150)


def test_a_batch_is_tried_again_after_a_failure_of_its_own_or_of_what_comes_after_it(spark, broker, create, tmp_path):
    source, sink = create(2), create(1)
    fill(broker.bootstrap, source, 250)
    into = BatchSink("ottla", {"kafka.bootstrap.servers": broker.bootstrap, "topic": sink})
    problems: list[str] = []

    def each(batch: Any, number: int) -> None:
        bad = batch.selectExpr("key", "cast(raise_error('hiccup') as binary) as value")
        for attempt in range(3):
            try:
                into(bad if attempt == 0 else batch.select("key", "value"), number)
                if attempt == 1:
                    raise OSError("what comes after the sink failed")
                return
            except Exception as problem:  # noqa: BLE001 - as users write it
                problems.append(str(problem))

    run(spark, broker.bootstrap, source, tmp_path / "cp", each)
    assert numbers(broker.bootstrap, sink) == once(250)
    assert ["hiccup" in each for each in problems] == [True, False] * 3


def test_other_rows_are_no_repetition(spark, broker, create, tmp_path):
    source, sink = create(2), create(1)
    fill(broker.bootstrap, source, 50)
    into = BatchSink("ottla", {"kafka.bootstrap.servers": broker.bootstrap, "topic": sink})

    def each(batch: Any, number: int) -> None:
        into(batch.where("key is not null"), number)
        into(batch.where("key is null"), number)

    with pytest.raises(Exception, match="is written twice under the name"):
        run(spark, broker.bootstrap, source, tmp_path / "cp", each)


AT = {"kafka.bootstrap.servers": "localhost:9092"}
TABLE = {"url": "postgresql://localhost/none", "table": "t"}


@pytest.mark.parametrize(
    ("form", "options", "said"),
    [
        ("kafka", {}, "there is no sink 'kafka' for a batch"),
        ("ottla", {**AT, "topc": "t"}, "there is no option 'topc'; did you mean topic"),
        ("ottla", {**AT, "topic": "t", "txnVersion": "3"}, "txnVersion cannot be set here"),
        ("ottla", {**AT, "topic": "t", "kafka.acks": "1"}, "exactly once needs all"),
        ("ottla", {**AT, "topic": "t", "kafka.linger": "1"}, "there is no option 'kafka.linger'"),
        ("ottla", {"topic": "t"}, "kafka.bootstrap.servers is missing"),
        ("ottla-postgres", {**TABLE, "kye": "id"}, "there is no option 'kye'; did you mean key"),
        ("ottla-postgres", {"table": "t"}, "the option url is missing"),
    ],
)
def test_unknown_options_of_a_batch_sink_are_refused_by_name(form, options, said):
    with pytest.raises(BadOption, match=said):
        BatchSink(form, options)


def test_a_batch_sink_takes_values_that_are_no_text():
    options: dict[str, Any] = {**AT, "topic": "t", "kafka.linger.ms": 5, "guarantee": "at_least_once"}
    BatchSink("ottla", options)
    BatchSink("ottla-postgres", TABLE)


def test_public_names_are_exported_by_the_package():
    assert ParquetEpochs.__module__ == "ottla.spark.connectors.parquet"


def test_columns_that_a_batch_sink_needs_are_asked_for(spark, broker, create: Create, tmp_path):
    source = create(1)
    fill(broker.bootstrap, source, 10)
    sink = BatchSink("ottla", {"kafka.bootstrap.servers": broker.bootstrap})
    with pytest.raises(Exception, match="the option topic, or a column"):
        run(spark, broker.bootstrap, source, tmp_path / "cp", sink)


def test_a_batch_that_fails_leaves_no_transaction_open(spark, broker, create: Create, tmp_path):
    """Otherwise read_committed consumers would wait for it."""
    source, sink = create(2), create(1)
    fill(broker.bootstrap, source, 100)
    each = BatchSink("ottla", {"kafka.bootstrap.servers": broker.bootstrap, "topic": sink})
    bad = lambda batch, number: each(  # noqa: E731
        batch.selectExpr("key", "if(cast(key as string) = '99', raise_error('no'), value) as value"), number
    )
    with pytest.raises(Exception, match="no"):
        run(spark, broker.bootstrap, source, tmp_path / "cp", bad)
    with blocking.Producer(broker.bootstrap) as producer:
        producer.send(sink, value=b"7").result()
    assert list(numbers(broker.bootstrap, sink)) == [7]
