"""Options of the PostgreSQL connectors, checked without a database and without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.config.named_options import Options
from ottla.spark.options import BadOption

READ: Final = ("url", "table", "query", "incrementingColumn", "maxRowsPerTrigger")
CAPTURE: Final = (
    "url", "tables", "slot", "publication", "topicPrefix", "snapshot", "maxChangesPerTrigger", "truncates",
)  # fmt: skip
WRITE: Final = ("url", "table", "key", "deletedColumn", "txnAppId", "txnVersion")
URL_EXAMPLE: Final = "postgresql://user:password@localhost/database"
ROWS_MAX: Final = 1_000_000
CHANGES_MAX: Final = 10_000
SPARKS: Final = ("checkpointlocation", "path", "queryname")
"""Options that Spark hands to every source and sink."""


def _options(given: Mapping[str, str], known: tuple[str, ...]) -> Options:
    """Empty options count as missing."""
    Options(given, BadOption).check_known(known, SPARKS)
    return Options({name: value for name, value in given.items() if value}, BadOption)


class ReadPlan(NamedTuple):
    url: str
    relation: str
    """What to select from, as SQL."""
    incrementing: str | None
    rows_max: int


def read_plan(given: Mapping[str, str]) -> ReadPlan:
    options = _options(given, READ)
    table, query = options.value("table"), options.value("query")
    if (table is None) == (query is None):
        raise BadOption("one of table and query says what to read")
    relation = f"({query.strip().rstrip(';')}) as q" if query else quoted(table or "")
    return ReadPlan(
        _url(options), relation, options.value("incrementingColumn"), options.number("maxRowsPerTrigger") or ROWS_MAX
    )


def _url(options: Options) -> str:
    """As libpq has it: an address, or pairs like host=localhost. It may have a password, so it is not shown."""
    url = options.needed("url", URL_EXAMPLE)
    if url.lower().startswith("jdbc:"):
        raise BadOption(f"url begins with jdbc:, which is Java's; write {URL_EXAMPLE}")
    if not url.lower().startswith(("postgresql://", "postgres://")) and "=" not in url:
        raise BadOption(f"url is no address of a database; write {URL_EXAMPLE}")
    return url


def quoted(table: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))


def batch_plan(given: Mapping[str, str]) -> ReadPlan:
    plan = read_plan(given)
    if plan.incrementing:
        raise BadOption("incrementingColumn is for readStream; read takes everything as it is now")
    return plan


def stream_plan(given: Mapping[str, str]) -> ReadPlan:
    plan = read_plan(given)
    if not plan.incrementing:
        raise BadOption(
            "incrementingColumn says by which column new rows are found; changes of all kinds, deletes too, are "
            "read with format('ottla-postgres-cdc')"
        )
    return plan


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    url: str
    tables: tuple[tuple[str, str], ...]
    """By schema and name."""
    slot: str
    publication: str
    prefix: str | None = None
    snapshot: str = "initial"
    changes_max: int = CHANGES_MAX
    truncates: bool = False


def capture_options(given: Mapping[str, str]) -> CaptureOptions:
    options = _options(given, CAPTURE)
    slot = options.needed("slot", "slot=actors; each query needs one of its own")
    tables = tuple(_table(name) for name in options.names("tables"))
    if not tables:
        raise BadOption("the option tables is missing; for example public.actors,public.colleges")
    return CaptureOptions(
        url=_url(options),
        tables=tables,
        slot=slot,
        publication=options.value("publication") or slot,
        prefix=options.value("topicPrefix"),
        snapshot=options.one_of("snapshot", ("initial", "never", "only")) or "initial",
        changes_max=options.number("maxChangesPerTrigger") or CHANGES_MAX,
        truncates=options.one_of("truncates", ("skip", "emit")) == "emit",
    )


def _table(name: str) -> tuple[str, str]:
    schema, dot, table = name.rpartition(".")
    return (schema, table) if dot else ("public", table)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    url: str
    table: tuple[str, ...]
    key: tuple[str, ...]
    deleted: str | None
    app_id: str | None
    version: int | None


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    options = _options(given, WRITE)
    key, deleted = options.names("key"), options.value("deletedColumn")
    app_id, version = options.value("txnAppId"), options.number("txnVersion", 0)
    if version is not None and app_id is None:
        raise BadOption("txnVersion counts the writes of a txnAppId, which is missing")
    if deleted is not None and not key:
        raise BadOption(f"deletedColumn={deleted} needs the option key: rows are deleted by it")
    return SinkOptions(
        url=_url(options),
        table=tuple(options.needed("table", "public.actors").split(".")),
        key=key,
        deleted=deleted,
        app_id=app_id,
        version=version,
    )


def check_columns(options: SinkOptions, names: list[str]) -> None:
    """Whether a DataFrame has the columns that the options name, and each once."""
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise BadOption(f"the column {twice[0]!r} is there twice; there are {_said(names)}")
    if options.deleted is not None and options.deleted not in names:
        raise BadOption(f"deletedColumn={options.deleted} needs a boolean column of that name, not {_said(names)}")
    lacking = [name for name in options.key if name not in names]
    if lacking:
        raise BadOption(f"the key column {lacking[0]} is not among the columns: {_said(names)}")


def _said(names: list[str]) -> str:
    return ", ".join(names)
