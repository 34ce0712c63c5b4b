"""`ottla pipeline`: pipelines on Spark from YAML files. Only `run` and `validate --spark` need Spark."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ottla.cli.failure import Failure, Suggesting
from ottla.cli.output import answer, json_option, print_json, print_json_line

if TYPE_CHECKING:
    from ottla.spark.pipeline.document import Pipeline, Problem
    from ottla.spark.pipeline.program import Span

EXAMPLE: Final = """\
# A query reads a topic and writes another topic and Parquet files. Sample records are in {samples}; try:
#   ottla produce {name}-orders {samples}
#   ottla pipeline run {file} --available-now
#   ottla consume {name}-large -e
name: {name}
storage: file://{here}/{name}-data        # checkpoints and status
guarantee: exactly-once

sources:
  orders:
    format: ottla
    options:
      kafka.bootstrap.servers: ${{BOOTSTRAP:-localhost:9092}}
      subscribe: {name}-orders
    # dead_letters: {{topic: {name}-bad}}      # takes records that do not match the schema, instead of stopping

schemas:
  orders: id int, product string, amount int
  large: id int, product string, amount int

transforms:
  picked: |
    select key, to_json(value) as value
    from orders
    where value.amount > 100
  flat: select key, value.*, timestamp from large      # a sink's name reads its topic

sinks:
  large:
    from: picked
    format: ottla
    options:
      kafka.bootstrap.servers: ${{BOOTSTRAP:-localhost:9092}}
      topic: {name}-large
  archive:
    from: flat
    format: parquet
    trigger: 1 minute
    options:
      path: file://{here}/{name}-data/parquet
"""
SAMPLES: Final = """\
{"id": 1, "product": "oranges", "amount": 40}
{"id": 2, "product": "lamp", "amount": 120}
{"id": 3, "product": "bread", "amount": 5}
{"id": 4, "product": "bicycle", "amount": 480}
{"id": 5, "product": "coffee", "amount": 12}
{"id": 6, "product": "table", "amount": 210}
"""
"""Values that match the example's schema; its query selects three of them."""
FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default="pipeline.yaml")


@click.group("pipeline", cls=Suggesting)
def command() -> None:
    """Pipelines on Spark: a YAML file with sources, SQL and sinks.

    \b
    Example:
      ottla pipeline init && ottla pipeline run
    """


@command.command("init")
@FILE
@json_option
def init(file: Path, as_json: bool) -> None:
    """Write a small pipeline to begin with, and sample records for it.

    \b
    Example:
      ottla pipeline init
    """
    name = file.stem if file.stem.isidentifier() else "pipeline"
    samples = file.with_name(f"{name}-orders.jsonl")
    for each in (file, samples):
        if each.exists():
            raise Failure(f"{each} exists already")
    file.write_text(EXAMPLE.format(file=file, name=name, samples=samples, here=file.resolve().parent))
    samples.write_text(SAMPLES)
    steps = {
        f"ottla produce {name}-orders {samples}": "writes the samples to the pipeline's topic",
        f"ottla pipeline run {file} --available-now": "processes them, then ends; otherwise it keeps running",
        f"ottla consume {name}-large -e": "shows the selected records",
    }
    width = max(map(len, steps))
    commands = "".join(f"\n  {step:<{width}}  {words}" for step, words in steps.items())
    answer(
        as_json,
        {"wrote": str(file), "samples": str(samples), "next": list(steps)},
        f"Wrote {file}, and sample records into {samples}. Next, with a broker on localhost:9092:{commands}",
    )


@command.command("validate")
@FILE
@click.option("--spark", is_flag=True, help="Let Spark parse and analyse the SQL, too. Nothing is run.")
@json_option
def validate(file: Path, spark: bool, as_json: bool) -> None:
    """Check a pipeline, with line numbers: options, schemas, names, times, and with --spark the SQL.

    \b
    Example:
      ottla pipeline validate --spark pipeline.yaml
    """
    found = _problems(file)
    notes: list[Problem] = []
    if spark and not found:
        from ottla.spark.pipeline import analysis, spark_session

        try:
            found, notes = analysis.problems(_parsed(file))
        except spark_session.NotStarted as problem:
            raise Failure(str(problem)) from None
    if found and as_json:
        print_json({"problems": [{"line": each.line, "text": each.text} for each in found]})
        raise SystemExit(Failure.exit_code)
    if found:
        from ottla.spark.pipeline.document import BadPipeline

        raise Failure(str(BadPipeline(str(file), found)))
    pipeline = _parsed(file)
    from ottla.spark.pipeline import option_checks
    from ottla.spark.pipeline.failures import counted

    notes = sorted([*notes, *option_checks.notes(pipeline)])
    for note in () if as_json else notes:
        click.echo(f"{file}:{note.line}: note: {note.text}")
    counts = f"{counted(len(pipeline.sources), 'source')}, {counted(len(pipeline.sinks), 'sink')}, {pipeline.guarantee}"
    value = {"problems": [], "notes": [{"line": each.line, "text": each.text} for each in notes]}
    answer(as_json, value, f"{file}: valid. {counts}.")


@command.command("explain")
@FILE
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw the graph into this file.")
@json_option
def explain(file: Path, svg: Path | None, as_json: bool) -> None:
    """Show the graph of sources, transforms and sinks.

    \b
    Example:
      ottla pipeline explain --svg pipeline.svg
    """
    from ottla.spark.pipeline import picture

    pipeline = _checked(file)
    value = {
        "sinks": {name: pipeline.checkpoint(name) for name in pipeline.sinks},
        "flows": [{"from": start, "to": end} for start, end in picture.edges(pipeline)],
    }
    answer(as_json, value, picture.text(pipeline))
    if svg is not None:
        svg.write_text(picture.svg(pipeline))
        if not as_json:
            click.echo(f"Drawn into {svg}.")


@command.command("eject")
@FILE
@json_option
def eject(file: Path, as_json: bool) -> None:
    """Print the pipeline as a PySpark program. It contains the values of variables, also passwords.

    \b
    Example:
      ottla pipeline eject > pipeline.py
    """
    from ottla.spark.pipeline.program import program

    text = program(_checked(file))
    answer(as_json, {"program": text}, text.removesuffix("\n"))


@command.command("run")
@FILE
@click.option("--available-now", is_flag=True, help="Process the records that are there, and end.")
@click.option("--master", metavar="URL", help="A Spark cluster, spark://host:port.  [default: Spark in this process]")
@click.option("--sink", "only", metavar="NAME", multiple=True, help="Only this sink's query; may be repeated.")
@click.option("--full-refresh", metavar="SINK", multiple=True, help="Restart this sink without its checkpoint.")
@click.option("--from", "start", metavar="TIME", help="Backfill: process records from this time on again, for --sink.")
@click.option("--to", "end", metavar="TIME", help="Backfill: up to this time, as 2026-11-15 or 2026-11-15T12:30, UTC.")
@json_option
def run(
    file: Path,
    available_now: bool,
    master: str | None,
    only: tuple[str, ...],
    full_refresh: tuple[str, ...],
    start: str | None,
    end: str | None,
    as_json: bool,
) -> None:
    """Run a pipeline, from its checkpoints.

    \b
    Example:
      ottla pipeline run --available-now
    """
    from ottla.spark.pipeline import storage

    pipeline = _parsed(file)
    for names, known in ((only, [*pipeline.sinks]), (full_refresh, _queries(pipeline))):
        for name in names:
            if name not in known:
                raise click.UsageError(f"unknown sink {name!r}; known are: {', '.join(known)}")

    def say(line: str) -> None:
        if as_json:
            print_json_line({"at": time.time(), "said": line})
        else:
            click.echo(line)

    for name in full_refresh:
        for gone in _forgotten(pipeline, name):
            say(f"{name}: removed {gone}")
    pipeline = _checked(file)
    span = _span(pipeline, only, start, end)
    from ottla.spark.pipeline import query_runner, spark_session

    try:
        if span is not None:
            query_runner.run_backfill(pipeline, only, span, master=master, say=say)
        else:
            query_runner.run(pipeline, master=master, available_now=available_now, only=only, say=say)
    except (query_runner.QueriesFailed, storage.AlreadyRunning, spark_session.NotStarted) as problem:
        raise Failure(str(problem)) from None


def _span(pipeline: Pipeline, only: tuple[str, ...], start: str | None, end: str | None) -> Span | None:
    from ottla.spark.pipeline import graph
    from ottla.spark.pipeline.program import Span

    if start is None and end is None:
        return None
    if start is None or end is None or not only:
        raise click.UsageError("a backfill needs --from, --to and --sink")
    for name in only:
        for each in graph.origins(pipeline, pipeline.sinks[name].origin):
            source = pipeline.sources.get(each)
            if source is not None and not source.batch and source.format != "ottla":
                raise click.UsageError(f"{name} reads {each}: only topics can be read again by time")
    times = []
    for text in (start, end):
        try:
            times.append(datetime.fromisoformat(text))
        except ValueError:
            raise click.UsageError(f"{text!r} is not a time; write 2026-11-15 or 2026-11-15T12:30") from None
    first, last = (int((each if each.tzinfo else each.replace(tzinfo=UTC)).timestamp() * 1000) for each in times)
    if first >= last:
        raise click.UsageError("--from is not before --to")
    return Span(first, last)


@command.command("status")
@FILE
@json_option
def status(file: Path, as_json: bool) -> None:
    """Show the state of the queries, also when the pipeline is not running, and the lag of their groups.

    \b
    Example:
      ottla pipeline status
    """
    from ottla.spark.pipeline import graph, lag, storage

    pipeline = _parsed(file)
    queries = (*graph.dead_letters(pipeline), *pipeline.sinks)
    if as_json:
        print_json({name: _status_json(pipeline, name) for name in queries})
        return
    for name in queries:
        click.echo(_status_line(name, storage.status(pipeline, name)))
        for mirror in lag.mirrors(pipeline, name):
            click.echo(f"    {lag.shown(mirror)}")


@command.command("repair")
@FILE
@json_option
def repair(file: Path, as_json: bool) -> None:
    """Repair checkpoints after a power failure: remove an incomplete entry, so that its batch is run again.

    \b
    Example:
      ottla pipeline repair
    """
    from ottla.spark.pipeline import storage

    found = list(storage.broken_entries(_parsed(file)))
    for entry in found:
        if entry.removable:
            storage.remove_entry(entry)
            if not as_json:
                click.echo(f"{entry.sink}: removed {entry.path}, which was incomplete; its batch is run again")
    hopeless = [entry for entry in found if not entry.removable]
    if as_json:
        print_json({"removed": [str(entry.path) for entry in found if entry.removable]})
    if hopeless:
        damaged = "\n".join(f"{entry.sink}: {entry.path} is damaged" for entry in hopeless)
        raise Failure(
            f"{damaged}\nthe content of these batches is unknown: restart with ottla pipeline run --full-refresh SINK"
        )
    if not found and not as_json:
        click.echo("All checkpoints are complete.")


@command.command("drop")
@FILE
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def drop(file: Path, yes: bool, as_json: bool) -> None:
    """Remove checkpoints, status and replication slots. Topics and tables stay; Parquet goes with its checkpoint.

    \b
    Example:
      ottla pipeline drop
    """
    pipeline = _parsed(file)
    if not yes:
        click.confirm(f"Remove all checkpoints of {pipeline.name}? The next run starts from the beginning", abort=True)
    done = [f"{name}: removed {gone}" for name in _queries(pipeline) for gone in _forgotten(pipeline, name)]
    for source in pipeline.sources.values():
        if source.format == "ottla-postgres-cdc":
            from ottla.spark.connectors.capture import drop_slot

            done.append(drop_slot(source.options))
    answer(as_json, {"done": done}, "\n".join(done))


def _queries(pipeline: Pipeline) -> list[str]:
    from ottla.spark.pipeline import graph

    return [*pipeline.sinks, *graph.dead_letters(pipeline)]


def _forgotten(pipeline: Pipeline, name: str) -> list[str]:
    from ottla.spark.pipeline import storage

    try:
        return storage.forget(pipeline, name)
    except storage.AlreadyRunning as problem:
        raise Failure(str(problem)) from None


def _parsed(file: Path) -> Pipeline:
    from ottla.spark.pipeline.document import BadPipeline

    try:
        return _read(file)
    except BadPipeline as problem:
        raise Failure(str(problem)) from None


def _read(file: Path) -> Pipeline:
    from ottla.spark.pipeline.document import read

    if not file.exists():
        raise Failure(f"there is no {file}; ottla pipeline init {file} writes one")
    return read(file)


def _checked(file: Path) -> Pipeline:
    from ottla.spark.pipeline.document import BadPipeline

    pipeline = _parsed(file)
    if found := _wrong(pipeline):
        raise Failure(str(BadPipeline(str(file), found)))
    return pipeline


def _wrong(pipeline: Pipeline) -> list[Problem]:
    from ottla.spark.pipeline import checks, storage

    return checks.problems(pipeline) or storage.broken_checkpoints(pipeline)


def _problems(file: Path) -> list[Problem]:
    """All errors: of the YAML, and of its meaning."""
    from ottla.spark.pipeline.document import BadPipeline

    try:
        return _wrong(_read(file))
    except BadPipeline as bad:
        return bad.problems


def _status_json(pipeline: Pipeline, name: str) -> dict[str, Any]:
    from ottla.spark.pipeline import lag, storage

    status = storage.status(pipeline, name) or {"state": None}  # has not run yet
    return status | {"groups": [lag.shown(mirror)._asdict() for mirror in lag.mirrors(pipeline, name)]}


def _status_line(name: str, status: dict[str, Any] | None) -> str:
    from ottla.spark.pipeline.failures import counted

    if status is None:
        return f"{name}: has not run yet"
    ago = time.time() - status["at"]
    state = status["state"]
    if state == "ended":
        state = "not running: its process ended without a status, because it was killed or the machine stopped"
    line = f"{name}: {state}, {ago:.0f} s ago"
    progress = status["progress"]
    if progress:
        line += f"; batch {progress['batchId']}, {counted(status['rows'], 'row')} in this run"
        line += f", {status['dead']} of them to dead letters" if status["dead"] else ""
        line += f", {status['late']} too late" if status.get("late") else ""
        for source in progress["sources"]:
            line += f"\n    at {source['endOffset']}"
            line += f", latest {source['latestOffset']}" if source["latestOffset"] not in (None, "null") else ""
    return line + (f"\n    {status['problem']}" if status["problem"] else "")
