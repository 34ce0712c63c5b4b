"""Mistakes in a pipeline's file are found with their lines, most before Spark starts, those in the SQL by Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="needs PyYAML: make test installs it")

from click.testing import CliRunner

from ottla.cli.main import cli
from ottla.spark.pipeline import analysis, document, storage

FILE = """\
name: orders
storage: {storage}
sources:
  orders:
    format: ottla
    options:
      kafka.bootstrap.servers: localhost:9092
      subscribe: orders
    watermark: {{column: value.at, delay: 10 minutes}}
  people:
    format: ottla-postgres
    batch: true
    options: {{url: "postgresql://localhost/none", table: people}}
schemas:
  orders: id int, at timestamp, price decimal(10,2)
transforms:
  picked: |

    select key,
           to_json(value) as value
    from orders
    where value.price > 3
  counted: select window(at, '1 minute') as span, count(*) as n from orders group by window(at, '1 minute')
sinks:
  large:
    from: picked
    format: ottla
    trigger: 1 minute
    mode: append
    options:
      kafka.bootstrap.servers: localhost:9092
      topic: large
  files:
    from: counted
    format: parquet
    options: {{path: "file:///tmp/none", files: 1}}
"""
pytestmark = pytest.mark.timeout(300)


def write(folder: Path, old: str = "", new: str = "") -> Path:
    text = FILE.format(storage=folder / "data")
    assert old in text
    file = folder / "pipeline.yaml"
    file.write_text(text.replace(old, new, 1))
    return file


def line_with(file: Path, text: str) -> int:
    lines = [number for number, line in enumerate(file.read_text().splitlines(), 1) if text in line]
    assert lines, text
    return lines[0]


@pytest.mark.parametrize(
    ("old", "new", "found_in", "said"),
    [
        ("subscribe: orders", "subscrib: orders", "subscrib:", "no option 'subscrib'; did you mean subscribe?"),
        (
            "      subscribe: orders\n",
            "",
            "kafka.bootstrap",
            "one of assign, subscribe, subscribePattern says what to read",
        ),
        ("topic: large", "topc: large", "topc:", "there is no option 'topc'; did you mean topic?"),
        ("id int,", "id integr,", "id integr", "the type 'integr', which Spark does not have; did you mean integer?"),
        ("select key,", "selec key,", "selec key", "picked is no query: it begins with selec"),
        ("trigger: 1 minute", "trigger: 1 minut", "trigger:", "no unit 'minut'; did you mean minutes?"),
        ("mode: append", "mode: apend", "mode:", "there is no mode 'apend'; did you mean append?"),
        ("delay: 10 minutes", "delay: ten minutes", "watermark:", "'ten' is no number"),
        ("column: value.at", "column: value.when", "watermark:", "by value.when, and the schema has id, at, price"),
        ("column: value.at", "column: value.id", "watermark:", "value.id is int, a number: unit: milliseconds"),
        ("column: value.at", "column: value.price", "watermark:", "value.price is decimal(10,2); it can be timestamp"),
        (
            "subscribe: orders",
            "startingOffsets: soon\n      subscribe: orders",
            "startingOffsets:",
            "startingOffsets is 'soon'; it can be earliest, latest, or offsets",
        ),
        (
            "subscribe: orders",
            "startingOffsets: earlist\n      subscribe: orders",
            "startingOffsets:",
            "startingOffsets is 'earlist'; did you mean earliest?",
        ),
        (
            "subscribe: orders",
            "subscribe: orders\n      kafka.sasl.mechanism: PLAIN",
            "kafka.sasl",
            "kafka.sasl.mechanism cannot be set: the client has neither TLS nor SASL",
        ),
        (
            'options: {path: "file:///tmp/none", files: 1}',
            "options: [path, file]",
            "options: [path",
            "options is a mapping of names to what they are",
        ),
        ("subscribe: orders", "kafka.isolation.levl: x\n      subscribe: orders", "levl", "kafka.isolation.level"),
        (
            "subscribe: orders",
            "subscribe: orders\n      columns: key,valu",
            "columns:",
            "columns are some of key, value",
        ),
        ("table: people", "tabel: people", "tabel:", "there is no option 'tabel'; did you mean table?"),
        ("files: 1", "files: one", "files: one", "files is 'one'; it is a whole number"),
        ("mode: append", "mode: complete", "mode:", "update writes those that changed"),
        (
            "topic: large",
            "kafka.acks: 1\n      topic: large",
            "kafka.acks",
            "kafka.acks is '1', and exactly once needs all",
        ),
        (
            "topic: large",
            "topic: orders",
            "topic: orders",
            "the sink large writes orders, which its source orders reads",
        ),
        (
            "    watermark:",
            "    dead_letters: {topic: orders}\n    watermark:",
            "dead_letters:",
            "the source orders: dead_letters go to orders, which it reads",
        ),
        (
            "    format: ottla\n",
            "    format: otla\n",
            "format: otla",
            "the source orders: there is no format 'otla'; did you",
        ),
        ("format: parquet", "format: parqet", "format: parqet", "no format 'parqet'; did you mean parquet?"),
        ("topic: large", "topic: or ders/€", "topic: or", "topic names 'or ders/€', as no topic can be called"),
        ("subscribe: orders", "subscribe: or/ders", "subscribe: or", "subscribe names 'or/ders', as no topic"),
        (
            "    watermark:",
            "    dead_letters: {topic: a/b}\n    watermark:",
            "dead_letters:",
            "dead_letters names 'a/b'",
        ),
        ("postgresql://localhost", "jdbc:postgresql://localhost", "jdbc:", "url begins with jdbc:, which is Java's"),
        ("postgresql://localhost/none", "localhost:5432", "localhost:5432", "url is no address of a database"),
        (
            "subscribe: orders",
            'startingOffsets: \'{"ordes":{"0":1}}\'\n      subscribe: orders',
            "startingOffsets:",
            "startingOffsets names the topic ordes, which is not read",
        ),
        (
            "sources:",
            "configuration:\n  spark.sql.shuffle.partitions: four\nsources:",
            "four",
            "spark.sql.shuffle.partitions is 'four'; it is a whole number",
        ),
        ("sources:", "configuration: {spark.driver.memory: 2gigs}\nsources:", "gigs", "it is a size like 512m or 2g"),
        ("sources:", "configuration: {spark.sql.ansi.enabled: ja}\nsources:", "ansi", "it is true or false"),
        ("from: picked", "from: pickd", "from: pickd", "did you mean picked?"),
        ("from: counted", "from: counted\n    mode: update", "mode: update", "parquet is only added to: append, or"),
        ("    from orders\n", "    from ordrs\n", "from ordrs", "picked reads ordrs, which is not defined"),
        ("where value.price > 3", "where rand() > 0.5", "rand()", "picked calls rand, which is different"),
    ],
)
def test_a_mistake_is_found_in_its_line_without_spark(old, new, found_in, said, tmp_path):
    file = write(tmp_path, old, new)
    reported = CliRunner().invoke(cli, ["pipeline", "validate", str(file)])
    assert reported.exit_code != 0
    assert f"{file}:{line_with(file, found_in)}: " in reported.output
    assert said in reported.output


@pytest.mark.parametrize(
    ("old", "new", "loops"),
    [
        ("subscribe: orders", "subscribePattern: lar.*", True),
        ("subscribe: orders", "subscribe: a, large", True),
        ("subscribe: orders", "assign: '{\"large\": [0]}'", True),
        ("subscribe: orders", "subscribePattern: lar", False),
        ("localhost:9092\n      subscribe: orders", "elsewhere:9092\n      subscribe: large", False),
    ],
)
def test_a_query_that_reads_what_it_writes_is_refused(old, new, loops, tmp_path):
    file = write(tmp_path, old, new)
    reported = CliRunner().invoke(cli, ["pipeline", "validate", str(file)])
    assert ("its records would come back without end" in reported.output) is loops
    assert (reported.exit_code != 0) is loops


def test_the_unchanged_pipeline_file_is_valid(tmp_path):
    reported = CliRunner().invoke(cli, ["pipeline", "validate", str(write(tmp_path))])
    assert reported.exit_code == 0, reported.output


def test_an_option_without_effect_is_noted_and_no_problem(tmp_path):
    file = write(tmp_path, "subscribe: orders", "subscribe: orders\n      kafka.receive.buffer.bytes: 65536")
    reported = CliRunner().invoke(cli, ["pipeline", "validate", str(file)])
    assert reported.exit_code == 0, reported.output
    line = line_with(file, "kafka.receive")
    assert f"{file}:{line}: note: the source orders: kafka.receive.buffer.bytes has no effect: " in reported.output
    assert "valid." in reported.output


@pytest.mark.parametrize(
    ("ratio", "least", "bad", "rows", "stops"),
    [(0.1, 100, 5, 20, False), (0.1, 100, 10, 100, False), (0.1, 100, 11, 100, True), (0.0, 100, 1, 5, True),
     (0.0, 100, 0, 500, False), (0.1, 0, 1, 5, True)],
)  # fmt: skip
def test_too_many_dead_letters_are_estimated_from_a_sample(ratio, least, bad, rows, stops):
    assert document.DeadLetters("bad", ratio, least).too_many(bad, rows) is stops


def test_a_changed_topic_option_is_refused_because_its_marker_is_in_the_old_topic(tmp_path):
    storage.keep_plan(document.read(write(tmp_path)), "large")
    file = write(tmp_path, "topic: large", "topic: larger")
    reported = CliRunner().invoke(cli, ["pipeline", "validate", str(file)])
    assert (
        f"{file}:{line_with(file, 'topic: larger')}: the checkpoint of large has written topic large" in reported.output
    )
    assert "--full-refresh large" in reported.output


def test_a_setting_that_spark_does_not_know_is_noted_if_it_is_almost_one_of_its_own(tmp_path, spark):
    said = "spark.sql.shufle.partitions: '4', spark.sql.catalog.lake: Some, spark.sql.ansi.enabled: 'true'"
    file = write(tmp_path, "sources:", f"configuration: {{{said}}}\nsources:")
    [note] = analysis.strange_settings(document.read(file), spark)
    assert note.line == line_with(file, "shufle")
    assert "did you mean spark.sql.shuffle.partitions?" in note.text


def test_a_path_that_was_edited_is_refused(tmp_path):
    storage.keep_plan(document.read(write(tmp_path)), "files")
    file = write(tmp_path, "file:///tmp/none", "file:///tmp/other")
    reported = CliRunner().invoke(cli, ["pipeline", "validate", str(file)])
    assert "the checkpoint of files has written path file:///tmp/none" in reported.output


@pytest.mark.parametrize(
    ("old", "new", "found_in", "said"),
    [
        ("as value\n", "as valu\n", "from: picked", "a column 'value' is what is written; there are key, valu"),
        (
            "select key,",
            "select key, 'x' as headers,",
            "from: picked",
            "column 'headers' is string; it can be array<struct",
        ),
        ("as value\n", "as value, key\n", "from: picked", "the column 'key' is there twice; there are key, value, key"),
        ("value.price", "value.prize", "value.prize", "`prize`"),
        ("from orders\n    where", "from orders\n    were", "were value", "Syntax error"),
        ("group by window(at, '1 minute')", "group by id", "counted:", "`id`"),
        ("group by window(at, '1 minute')", "group by 1 having max(at) > 1", "counted:", "at"),
        ("from: counted", "from: counted\n    mode: complete", "from: counted", ""),
        ("files: 1}", "files: 1, partitionBy: dy}", "partitionBy", "partitionBy names dy; the columns are span, n"),
        ("files: 1}", "partitionBy: n}", "partitionBy", ""),
        ("files: 1}", "partitionBy: 'span, n'}", "partitionBy", "nothing is left"),
        ("from: counted\n", "from: session\n    mode: update\n", "mode: update", "session window"),
    ],
)
def test_mistakes_in_the_sql_are_found_in_their_lines_by_spark(old, new, found_in, said, tmp_path, spark):
    file = write(tmp_path, old, new)
    session = "  session: select count(*) as n from orders group by session_window(at, '1 minute')\nsinks:\n"
    file.write_text(file.read_text().replace("sinks:\n", session))
    found = analysis.found(document.read(file), spark)
    if not said:
        assert found == []
        return
    [problem] = found
    assert problem.line == line_with(file, found_in)
    assert said in problem.text
