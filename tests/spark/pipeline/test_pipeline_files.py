"""Pipeline files are parsed, checked and compiled without Spark; errors have a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

pytest.importorskip("yaml", reason="needs PyYAML: make test installs it")

from ottla.cli.main import cli
from ottla.spark.pipeline import checks, document, graph, lag, picture, storage
from ottla.spark.pipeline.ddl import seconds
from ottla.spark.pipeline.document import BadPipeline, Pipeline
from ottla.spark.pipeline.program import Span, backfill, program, reading
from ottla.spark.pipeline.query_runner import IdlePartitions
from tests.cli.commands import Ottla

ACTORS = Path(__file__).resolve().parents[3] / "examples" / "actors" / "pipeline.yaml"
BASE = """\
name: orders
storage: {storage}
sources:
  orders:
    format: ottla
    options: {{kafka.bootstrap.servers: "localhost:9092", subscribe: orders}}
  payments:
    format: ottla
    options: {{kafka.bootstrap.servers: "localhost:9092", subscribe: payments}}
schemas:
  orders: id int, price decimal(10,2)
transforms:
  picked: {picked}
sinks:
  large:
    from: picked
    format: ottla
    options: {{kafka.bootstrap.servers: "localhost:9092", topic: large}}
"""


def made(picked: str = "select key, value from orders", storage: str = "/tmp/none", more: str = "") -> Pipeline:
    return document.parse(BASE.format(picked=picked, storage=storage) + more, "p.yaml", {})


def reported(pipeline: Pipeline) -> list[str]:
    return [f"{problem.line}: {problem.text}" for problem in checks.problems(pipeline)]


def test_the_example_is_good_and_compiles():
    environment = {"DATABASE": "postgresql://localhost/theatre"}
    pipeline = document.parse(ACTORS.read_text(), "pipeline.yaml", environment)
    assert checks.problems(pipeline) == []
    text = program(pipeline)
    compile(text, "program", "exec")
    assert '"subscribe": "actors-enriched"' in text  # a sink's name reads its topic
    assert "broadcast(frame)" in text
    assert graph.ordered_sinks(pipeline)[:2] == ["actors", "enriched"]


def test_a_partition_that_stalls_while_others_progress_is_warned_of_once():
    idle = IdlePartitions(seconds("10 minutes"))
    assert idle.seen({("t", "0"): 1, ("t", "1"): 1}, 0.0) == []
    assert idle.seen({("t", "0"): 2, ("t", "1"): 1}, 500.0) == []
    assert idle.seen({("t", "0"): 3, ("t", "1"): 1}, 600.0) == ["t-1"]
    assert idle.seen({("t", "0"): 4, ("t", "1"): 1}, 700.0) == []
    assert idle.seen({("t", "0"): 4, ("t", "1"): 2}, 800.0) == []
    assert idle.seen({("t", "0"): 4, ("t", "1"): 2}, 2000.0) == []  # nothing moves, so no watermark does
    assert [seconds(reported) for reported in ("1 hour", "90 seconds", "500 milliseconds")] == [3600.0, 90.0, 0.5]


def test_a_query_is_identified_by_the_group_of_its_progress():
    (mirror,) = lag.mirrors(made("select key, value from orders join payments using (key)"), "large")
    assert mirror == ("orders-large", {"bootstrap.servers": "localhost:9092"})


def test_variables_come_from_the_environment_or_have_a_default():
    text = "name: ${NAME}\nstorage: ${WHERE:-/data}\nsinks: {}\n"
    pipeline = document.parse(text, "p.yaml", {"NAME": "n"})
    assert (pipeline.name, pipeline.storage) == ("n", "/data")
    with pytest.raises(BadPipeline, match=r"p.yaml:1: the variable NAME is not set"):
        document.parse(text, "p.yaml", {})


def test_everything_that_is_wrong_is_said_at_once_with_its_line():
    with pytest.raises(BadPipeline) as refused:
        document.parse("name: n\nsink:\n  a: {}\nsources:\n  s: {fromat: x}\n", "p.yaml", {})
    assert [problem.line for problem in refused.value.problems] == [1, 1, 2, 5, 5]
    assert "has no key 'fromat'" in str(refused.value)


@pytest.mark.parametrize(
    ("picked", "expected"),
    [
        ("select key, value from ordres", "13: picked reads ordres, which is not defined; did you mean orders?"),
        ("select key, rand() as value from orders", "13: picked calls rand, which is different"),
        ("select key, current_timestamp as value from orders", "13: picked calls current_timestamp"),
        ("select o.key, o.value from orders o join payments p on o.key = p.key", "13: picked joins the streams"),
        ("select key, count(*) as value from orders group by key", "13: picked groups a stream without end"),
        ("select key, value from picked", "13: picked reads itself"),
        ("select key, value from large", "16: the sink large reads its own topic"),
    ],
)
def test_an_invalid_pipeline_is_refused_before_spark_starts(picked, expected):
    assert reported(made(picked))[0].startswith(expected)


@pytest.mark.parametrize(
    ("picked", "said"),
    [
        ("select key, value from ordres", "13: picked reads ordres, which is not defined; did you mean orders?"),
        ("select key, value from picked", "13: picked reads itself, through other transforms or directly"),
        ("", "13: picked is no query: it begins with nothing, not with select"),
        ("select 1 as value", "16: the sink large has no stream: picked reads no source"),
    ],
)
def test_one_mistake_is_one_problem(picked, said):
    assert reported(made(picked)) == [said]


COUNTED = "select value.id as key, cast(count(*) as string) as value from orders group by value.id"


def test_groups_need_no_watermark_where_what_changed_is_written():
    (refused,) = reported(made(COUNTED))
    assert refused.endswith("or write what has changed with every batch: mode: update on the sink")
    pipeline = made(COUNTED, more="    mode: update\n")
    assert reported(pipeline) == []
    text = program(pipeline)
    compile(text, "program", "exec")
    assert 'writer.outputMode("update")' in text
    assert 'foreachBatch(BatchSink("ottla", {"kafka.bootstrap.servers": "localhost:9092", "topic": "large"}))' in text


@pytest.mark.parametrize(
    ("mark", "column"),
    [
        ("{column: timestamp, delay: 1 hour}", None),
        ("{column: value.id, unit: seconds, as: at, delay: 1 hour}", "timestamp_seconds(value.id)"),
        ("{column: value.at, delay: 1 hour}", "cast(value.at as timestamp)"),
    ],
)
def test_an_event_time_is_a_column_of_its_own(mark, column):
    text = BASE.format(picked="select key, value from orders", storage="/tmp/none")
    text = text.replace("id int,", "id int, at string,")
    text = text.replace(
        "subscribe: orders}", f"subscribe: orders}}\n    watermark: {mark}\n    deduplicate: value.id, key"
    )
    pipeline = document.parse(text, "p.yaml", {})
    assert reported(pipeline) == []
    made_of = program(pipeline)
    compile(made_of, "program", "exec")
    assert column is None or f'withColumn("at", expr("{column}"))' in made_of
    name = "timestamp" if column is None else "at"
    assert f'frame.withWatermark("{name}", "1 hour")' in made_of
    assert 'dropDuplicatesWithinWatermark(["_same_0", "_same_1"]).drop("_same_0", "_same_1")' in made_of


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("deduplicate: value.id", "deduplicate needs a watermark"),
        ("watermark: {column: timestamp, delay: 1 hour}\n    deduplicate: value.nr", "deduplicate names value.nr"),
        (
            "watermark: {column: value.timestamp, delay: 1 hour}",
            "has a column timestamp already; as: timestamp_of_event",
        ),
        ("watermark: {column: value.id, unit: days, delay: 1 hour}", "unit is 'days'"),
        ("watermark: {column: valeu.at, delay: 1 hour}", "by valeu.at, and a record has key, value, topic"),
    ],
)
def test_an_event_time_that_cannot_be_is_refused(more, said):
    text = BASE.format(picked="select key, value from orders", storage="/tmp/none")
    text = text.replace("id int,", "id int, timestamp timestamp,")
    text = text.replace("subscribe: orders}", f"subscribe: orders}}\n    {more}")
    try:
        found = "\n".join(reported(document.parse(text, "p.yaml", {})))
    except BadPipeline as refused:
        found = str(refused)
    assert said in found


def test_words_in_quotes_and_comments_are_no_calls():
    assert reported(made("select key, 'rand()' as value from orders -- now()")) == []


def test_names_that_a_query_defines_itself_are_not_looked_for():
    assert graph.reads("with a as (select 1 from orders) select * from a, payments p") == ["orders", "payments"]


def test_a_query_keeps_the_ids_of_its_topics_in_its_checkpoint_and_forgets_them_with_it(tmp_path):
    letters = "{kafka.bootstrap.servers: localhost:9092, subscribe: orders}\n    dead_letters: {topic: bad}"
    text = BASE.format(picked="select o.key, o.value from orders o join payments p on o.key = p.key", storage=tmp_path)
    text = text.replace('{kafka.bootstrap.servers: "localhost:9092", subscribe: orders}', letters)
    file = tmp_path / "p.yaml"
    file.write_text(text)
    pipeline = document.parse(text, "p.yaml", {})
    for query in ("large", "orders_dead_letters"):
        source = pipeline.sources["orders"]
        assert reading(pipeline, source, query)["checkpointLocation"] == f"{tmp_path}/checkpoints/{query}"
        (tmp_path / "checkpoints" / query / "ottla").mkdir(parents=True)
    done = CliRunner().invoke(cli, ["pipeline", "drop", "--yes", str(file)])
    assert done.exit_code == 0, done.output
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_an_edit_that_breaks_a_checkpoint_is_refused(tmp_path):
    before = made(storage=str(tmp_path))
    storage.keep_plan(before, "large")
    assert storage.broken_checkpoints(made("select key, upper(value) as value from orders", str(tmp_path))) == []
    (other,) = storage.broken_checkpoints(made("select key, value from payments", str(tmp_path)))
    assert "was made with other sources" in other.text
    assert "--full-refresh large" in other.text
    retyped = BASE.format(picked="select key, value from orders", storage=tmp_path).replace("id int", "id string")
    (changed,) = storage.broken_checkpoints(document.parse(retyped, "p.yaml", {}))
    assert "orders.id was int and is string now" in changed.text


def test_a_new_field_in_a_schema_is_fine(tmp_path):
    storage.keep_plan(made(storage=str(tmp_path)), "large")
    wider = BASE.format(picked="select key, value from orders", storage=tmp_path).replace("id int", "id int, n int")
    assert storage.broken_checkpoints(document.parse(wider, "p.yaml", {})) == []


def test_a_truncated_checkpoint_is_repaired_only_if_no_record_can_be_lost(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(BASE.format(picked="select key, value from orders", storage=tmp_path))
    checkpoint = tmp_path / "checkpoints" / "large"
    for kind in ("offsets", "commits"):
        (checkpoint / kind).mkdir(parents=True)
        for number in range(3):
            (checkpoint / kind / str(number)).write_text('v1\n{"a":1}')
    repair = lambda: CliRunner().invoke(cli, ["pipeline", "repair", str(file)])  # noqa: E731
    assert "All checkpoints are complete" in repair().output
    (checkpoint / "commits" / "2").write_text("")
    assert "its batch is run again" in repair().output
    assert not (checkpoint / "commits" / "2").exists()
    (checkpoint / "offsets" / "2").write_text('v1\n{"a"')
    refused = repair()
    assert refused.exit_code != 0
    assert "restart with ottla pipeline run --full-refresh" in refused.output
    assert (checkpoint / "offsets" / "2").exists()


def test_a_backfill_is_a_batch_with_a_name_of_its_own():
    pipeline = made()
    text = backfill(pipeline, pipeline.sinks["large"], Span(1000, 2000))
    compile(text, "backfill", "exec")
    assert '"startingTimestamp": "1000", "endingTimestamp": "2000"' in text
    assert '"txnAppId": "orders-large-backfill-1000-2000"' in text
    assert "readStream" not in text


def test_the_picture_shows_every_topic_query_and_sink():
    pipeline = document.parse(ACTORS.read_text(), "pipeline.yaml", {"DATABASE": ""})
    root = ElementTree.fromstring(picture.svg(pipeline))
    names = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {*pipeline.sources, *pipeline.transforms, *pipeline.sinks} <= names


def test_the_commands_need_no_spark(tmp_path):
    file = str(tmp_path / "first.yaml")
    run = lambda *arguments: CliRunner().invoke(cli, ["pipeline", *arguments])  # noqa: E731
    assert run("init", file).exit_code == 0
    assert "valid. 1 source, 2 sinks, exactly-once" in run("validate", file).output
    assert "large: orders (ottla) → picked → ottla first-large" in run("explain", file).output
    compile(run("eject", file).output, "ejected", "exec")
    assert "large: has not run yet" in run("status", file).output
    assert run("init", file).exit_code != 0


def test_commands_have_the_same_information_as_json(tmp_path):
    file = tmp_path / "first.yaml"

    def reported(*arguments: str, status: int = 0) -> Any:
        done = CliRunner().invoke(cli, ["pipeline", *arguments, str(file), "--json"])
        assert done.exit_code == status, done.output
        return json.loads(done.output)

    first = reported("init")
    assert first["wrote"] == str(file)
    assert first["next"][0] == f"ottla produce first-orders {first['samples']}"
    assert reported("validate") == {"problems": [], "notes": []}
    assert {"from": "orders", "to": "picked"} in reported("explain")["flows"]
    compile(reported("eject")["program"], "ejected", "exec")
    assert reported("repair") == {"removed": []}
    assert reported("drop", "--yes")["done"] == []
    file.write_text(file.read_text().replace("from: picked", "from: pickd"))
    [problem] = reported("validate", status=1)["problems"]
    assert "did you mean picked?" in problem["text"]
    assert file.read_text().splitlines()[problem["line"] - 1].strip() == "from: pickd"


def test_status_as_json_has_lag_and_errors(tmp_path, monkeypatch, ottla_broker):
    file = str(tmp_path / "lagging.yaml")
    ottla = Ottla(ottla_broker.bootstrap_servers)
    ottla("pipeline", "init", file)
    monkeypatch.setenv("BOOTSTRAP", ottla_broker.bootstrap_servers)
    ottla("topics", "create", "lagging-orders")
    ottla("produce", "lagging-orders", given="1\n2\n3\n")
    assert "group lagging-large: no progress yet" in ottla("pipeline", "status", file)
    ottla("groups", "reset-offsets", "lagging-large", "--topic", "lagging-orders", "--to-offset", "1", "--execute")
    reported = ottla.json("pipeline", "status", file)
    assert reported["large"]["state"] is None
    assert reported["large"]["groups"] == [{"group": "lagging-large", "behind": 2, "partitions": 1, "problem": None}]
    assert "group lagging-large: 2 records behind in 1 partition\n" in ottla("pipeline", "status", file)
    monkeypatch.setenv("BOOTSTRAP", "127.0.0.1:1")
    [group] = ottla.json("pipeline", "status", file)["large"]["groups"]
    assert group["behind"] is None
    assert "127.0.0.1:1" in group["problem"]
