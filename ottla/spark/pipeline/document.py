"""A pipeline's file: what is in it, and in which line. No Spark.

    name: actors
    storage: file:///var/lib/actors            # checkpoints, status
    configuration: {spark.sql.shuffle.partitions: "4"}
    guarantee: exactly-once                    # or at-least-once
    sources:
      changes: {format: ottla-postgres-cdc, options: {url: "${DATABASE}", tables: actors, slot: actors}}
      colleges: {format: ottla-postgres, batch: true, options: {url: "${DATABASE}", table: colleges}}
    schemas: {actors: "id int, name string, college_id int", orders: {avro: orders.avsc}}
    transforms:
      rows: select get_json_object(key, '$.id') key, get_json_object(value, '$.after') value from changes
    sinks:
      actors: {from: rows, format: ottla, options: {topic: actors, kafka.bootstrap.servers: "${BOOTSTRAP}"}}

`${NAME}` and `${NAME:-default}` come from the environment, inside of texts only. The first keys are those of
`spark-pipelines`. A sink's name can be read like a source's: the topic that it writes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from ottla.config.named_options import any_of
from ottla.spark.pipeline import ddl

TOP: Final = ("name", "storage", "configuration", "guarantee", "restart", "sources", "schemas", "transforms", "sinks")
SOURCE: Final = ("format", "options", "batch", "watermark", "deduplicate", "broadcast", "dead_letters")
SINK: Final = ("from", "format", "options", "trigger", "mode")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
UNITS: Final = ("seconds", "milliseconds", "microseconds")
GUARANTEES: Final = ("exactly-once", "at-least-once")


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    line: int
    text: str


class BadPipeline(ValueError):
    def __init__(self, path: str, problems: list[Problem]) -> None:
        self.problems = sorted(problems)
        super().__init__("\n".join(f"{path}:{each.line}: {each.text}" for each in self.problems))


@dataclass(frozen=True, slots=True)
class Watermark:
    """The event time of a source, and how late its rows may be."""

    column: str
    """A column, or a field of one: value.at."""
    delay: str
    name: str
    """The name of the event-time column: by default the last part of a field's path."""
    unit: str | None = None
    """Of a number that counts from 1970 on."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The policy for a failed query."""

    limit: int = 5
    """So many times within `within_s` it is started again; 0: never."""
    within_s: float = 3600.0
    backoff_s: float = 5.0
    """Before the first restart; doubled for each one after it, up to BACKOFF_MAX_S."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where values go that do not fit the schema."""

    topic: str
    ratio_max: float
    """More of them than this, of all that were read in a run, stop the query."""
    records_min: int = 100
    """So many have to be read before the ratio counts. If it is 0, not a single one is tolerated."""

    def too_many(self, bad: int, rows: int) -> bool:
        return (rows >= self.records_min or self.ratio_max == 0) and bad > self.ratio_max * rows


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    line: int
    format: str
    options: Mapping[str, str]
    batch: bool = False
    broadcast: bool = True
    """A batch source is small enough to be sent to every task, so that joining it does not reorder a stream."""
    watermark: Watermark | None = None
    dead_letters: DeadLetters | None = None
    deduplicate: tuple[str, ...] = ()
    """Columns, or fields; of rows in which all of them are equal, the first within the watermark's delay stays."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Where its keys and its options are written."""

    def line_of(self, name: str) -> int:
        return self.lines.get(name.lower(), self.line)

    def problem(self, at: str, text: str) -> Problem:
        return Problem(self.line_of(at), f"the source {self.name}: {text}")


@dataclass(frozen=True, slots=True)
class Transform:
    name: str
    line: int
    sql: str
    block: bool = False
    """The text begins in the next line, and its lines are lines of the file."""

    def line_of(self, sql_line: int) -> int:
        """The line of the file for one of the SQL, from 1 on, without its leading blank lines."""
        leading = len(self.sql) - len(self.sql.lstrip())
        return self.line + self.sql[:leading].count("\n") + sql_line if self.block else self.line

    def line_with(self, word: str) -> int:
        """The line of the file with the first occurrence of a word of the SQL."""
        found = re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", self.sql.lstrip(), re.IGNORECASE)
        return self.line_of(1 + self.sql.lstrip()[: found.start() if found else 0].count("\n"))


@dataclass(frozen=True, slots=True)
class Sink:
    name: str
    line: int
    origin: str
    """What `from` names."""
    format: str
    options: Mapping[str, str]
    trigger: str | None = None
    mode: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    """Where its keys and its options are written."""

    def line_of(self, name: str) -> int:
        return self.lines.get(name.lower(), self.line)

    def problem(self, at: str, text: str) -> Problem:
        return Problem(self.line_of(at), f"the sink {self.name}: {text}")


@dataclass(frozen=True, slots=True)
class Schema:
    """Of a topic's values: JSON with these columns, as Spark writes them, or Avro."""

    text: str
    """The columns; of Avro, the schema as JSON."""
    avro: bool = False
    registry: str | None = None
    """Values are in Confluent's wire format, by the schemas that are found there."""
    line: int = 1

    @property
    def columns(self) -> dict[str, str]:
        """Names, and the type of each as text that changes with it."""
        if not self.avro:
            return split_columns(self.text)
        fields = json.loads(self.text).get("fields", ())
        return {each["name"].lower(): json.dumps(each["type"], sort_keys=True) for each in fields}


def split_columns(text: str) -> dict[str, str]:
    """As Spark writes them; commas inside of struct<…> and decimal(…) do not count."""
    columns = [re.split(r"[\s:]+", part, maxsplit=1) for part in ddl.split(text, strict=False)]
    return {each[0].strip("`").lower(): " ".join(each[1:]).lower() for each in columns}


@dataclass(frozen=True, slots=True)
class Pipeline:
    path: str
    name: str
    storage: str
    guarantee: str
    configuration: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    transforms: Mapping[str, Transform] = field(default_factory=dict)
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    restart: Restart = field(default_factory=Restart)
    lines: Mapping[str, int] = field(default_factory=dict)
    """Where its settings of Spark are written."""

    def line_of(self, setting: str) -> int:
        return self.lines.get(setting.lower(), 1)

    def checkpoint(self, sink: str) -> str:
        return f"{self.storage}/checkpoints/{sink}"


def read(path: Path, environment: Mapping[str, str] = os.environ) -> Pipeline:
    return parse(path.read_text(), str(path), environment)


def parse(text: str, path: str, environment: Mapping[str, str]) -> Pipeline:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        raise BadPipeline(path, [Problem(line, f"not YAML: {problem.problem}")]) from None
    reader = _DocumentReader(environment)
    made = reader.pipeline(path, node)
    if reader.problems:
        raise BadPipeline(path, reader.problems)
    return made


def _lines(mapping: Mapping[str, Any]) -> dict[str, int]:
    """Of the keys of a source or sink and, by their names in lower case, of its options."""
    options = mapping.get("options")
    given = {key.value.lower(): key for key, _ in options.value} if isinstance(options, yaml.MappingNode) else {}
    return {name: node.start_mark.line + 1 for name, node in {**mapping, **given}.items() if node is not None}


class _DocumentReader:
    """Walks YAML's nodes, which know their lines, and collects everything that is wrong."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self._environment = environment

    def pipeline(self, path: str, node: Any) -> Pipeline:
        top = self._fields(node, "a pipeline", TOP)
        for name in ("name", "storage", "sinks"):
            if name not in top:
                self._wrong(node, f"{name} is missing")
        guarantee = self._text(top.get("guarantee"), GUARANTEES[0])
        if guarantee not in GUARANTEES:
            self._wrong(top["guarantee"], f"guarantee is {guarantee!r}; it can be {any_of(GUARANTEES)}")
        return Pipeline(
            path,
            self._text(top.get("name"), ""),
            self._text(top.get("storage"), "").rstrip("/"),
            guarantee,
            self._texts(top.get("configuration"), "configuration"),
            {name: self._source(name, each) for name, each in self._named(top.get("sources"), "sources")},
            {
                name: self._schema(name, each, Path(path).parent)
                for name, each in self._named(top.get("schemas"), "schemas")
            },
            {
                name: Transform(name, each.start_mark.line + 1, self._text(each, ""), getattr(each, "style", "") == "|")
                for name, each in self._named(top.get("transforms"), "transforms")
            },
            {name: self._sink(name, each) for name, each in self._named(top.get("sinks"), "sinks")},
            self._restart(top.get("restart")),
            _lines({"options": top.get("configuration")}),
        )

    def _source(self, name: str, node: Any) -> Source:
        mapping = self._fields(node, f"the source {name}", SOURCE)
        if "format" not in mapping:
            self._wrong(node, f"the source {name} has no format")
        return Source(
            name,
            node.start_mark.line + 1,
            self._text(mapping.get("format"), ""),
            self._texts(mapping.get("options"), "options"),
            self._flag(mapping.get("batch"), False),
            self._flag(mapping.get("broadcast"), True),
            self._watermark(mapping.get("watermark")),
            self._dead_letters(mapping.get("dead_letters")),
            self._list(mapping.get("deduplicate")),
            _lines(mapping),
        )

    def _watermark(self, node: Any) -> Watermark | None:
        if node is None:
            return None
        mapping = self._fields(node, "a watermark", ("column", "delay", "as", "unit"))
        column, delay = self._text(mapping.get("column"), ""), self._text(mapping.get("delay"), "")
        if not column or not delay:
            self._wrong(node, "a watermark has a column and a delay, for example 10 minutes")
        elif delay:
            self._seconds(mapping["delay"], "the delay of a watermark")
        unit = self._text(mapping.get("unit"), "") or None
        if unit is not None and unit not in UNITS:
            self._wrong(mapping["unit"], f"unit is {unit!r}; it can be {any_of(UNITS)}")
        name = self._text(mapping.get("as"), column.rpartition(".")[2])
        if not NAME.fullmatch(name) and column:
            self._wrong(node, f"{name!r} cannot be the name of a column; as: says another one")
        return Watermark(column, delay, name, unit)

    def _restart(self, node: Any) -> Restart:
        if node is None:
            return Restart()
        mapping = self._fields(node, "restart", ("limit", "within", "backoff"))
        limit = self._text(mapping.get("limit"), str(Restart().limit))
        if not limit.isdecimal():
            self._wrong(mapping["limit"], f"limit is {limit!r}; it is a whole number, and 0 restarts nothing")
            limit = "0"
        within = self._seconds(mapping["within"], "within") if "within" in mapping else Restart().within_s
        backoff = self._seconds(mapping["backoff"], "backoff") if "backoff" in mapping else Restart().backoff_s
        return Restart(int(limit), within, backoff)

    def _seconds(self, node: Any, what: str) -> float:
        try:
            return ddl.seconds(self._text(node, ""))
        except ValueError as problem:
            self._wrong(node, f"{what}: {problem}")
            return 0.0

    def _list(self, node: Any) -> tuple[str, ...]:
        """A text, in which commas separate, or a sequence of texts."""
        if isinstance(node, yaml.SequenceNode):
            return tuple(self._text(each, "") for each in node.value)
        return tuple(part.strip() for part in self._text(node, "").split(",") if part.strip())

    def _schema(self, name: str, node: Any, beside: Path) -> Schema:
        if isinstance(node, yaml.ScalarNode):
            return Schema(self._text(node, ""), line=node.start_mark.line + 1)
        mapping = self._fields(node, f"the schema {name}", ("avro", "registry"))
        text = self._text(mapping.get("avro"), "")
        try:
            if not text.lstrip().startswith("{"):
                text = (beside / text).read_text()
            if json.loads(text).get("type") != "record":
                self._wrong(node, f"the Avro schema {name} is no record")
        except OSError as problem:
            self._wrong(node, f"the Avro schema {name} cannot be read: {problem.strerror}: {beside / text}")
        except (ValueError, AttributeError) as problem:
            self._wrong(node, f"the Avro schema {name} is not JSON: {problem}")
        return Schema(text, True, self._text(mapping.get("registry"), "") or None, node.start_mark.line + 1)

    def _dead_letters(self, node: Any) -> DeadLetters | None:
        if node is None:
            return None
        mapping = self._fields(node, "dead_letters", ("topic", "max_ratio", "min_records"))
        text = self._text(mapping.get("max_ratio"), "1")
        if "topic" not in mapping:
            self._wrong(node, "dead_letters has no topic to put them into")
        if not re.fullmatch(r"0(\.\d+)?|1(\.0+)?|\.\d+", text):
            self._wrong(node, f"max_ratio is {text!r}; it is a number from 0 to 1")
            text = "1"
        least = self._text(mapping.get("min_records"), str(DeadLetters("", 1.0).records_min))
        if not least.isdecimal():
            self._wrong(node, f"min_records is {least!r}; it is a whole number")
            least = "0"
        return DeadLetters(self._text(mapping.get("topic"), ""), float(text), int(least))

    def _sink(self, name: str, node: Any) -> Sink:
        mapping = self._fields(node, f"the sink {name}", SINK)
        for needed in ("from", "format"):
            if needed not in mapping:
                self._wrong(node, f"the sink {name} has no {needed}")
        return Sink(
            name,
            node.start_mark.line + 1,
            self._text(mapping.get("from"), ""),
            self._text(mapping.get("format"), ""),
            self._texts(mapping.get("options"), "options"),
            self._text(mapping.get("trigger"), "") or None,
            self._text(mapping.get("mode"), "") or None,
            _lines(mapping),
        )

    def _fields(self, node: Any, what: str, known: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(node, yaml.MappingNode):
            having = f"with the keys {', '.join(known)}" if known else "of names to what they are, as NAME: …"
            self._wrong(node, f"{what} is a mapping {having}")
            return {}
        found: dict[str, Any] = {}
        for key, value in node.value:
            if key.value in found:
                self._wrong(key, f"{key.value} is there twice")
            elif known and key.value not in known:
                self._wrong(key, f"{what} has no key {key.value!r}; there are {', '.join(known)}")
            found[key.value] = value
        return found

    def _named(self, node: Any, what: str) -> list[tuple[str, Any]]:
        if node is None:
            return []
        found = self._fields(node, what, ())
        for name, value in found.items():
            if not NAME.fullmatch(name):
                self._wrong(value, f"{name!r} cannot be a name in SQL: letters, digits and _ only")
        return list(found.items())

    def _texts(self, node: Any, what: str) -> dict[str, str]:
        return (
            {} if node is None else {key: self._text(value, "") for key, value in self._fields(node, what, ()).items()}
        )

    def _text(self, node: Any, default: str) -> str:
        if node is None:
            return default
        if not isinstance(node, yaml.ScalarNode):
            self._wrong(node, "a text is expected here")
            return default
        return VARIABLE.sub(lambda found: self._variable(node, found), node.value)

    def _variable(self, node: Any, found: re.Match[str]) -> str:
        value = self._environment.get(found[1], found[2])
        if value is None:
            self._wrong(node, f"the variable {found[1]} is not set; ${{{found[1]}:-…}} gives it a default")
            return ""
        return value

    def _flag(self, node: Any, default: bool) -> bool:
        text = self._text(node, str(default)).lower()
        if text not in ("true", "false"):
            self._wrong(node, f"{text!r} is neither true nor false")
        return text == "true"

    def _wrong(self, node: Any, text: str) -> None:
        self.problems.append(Problem(node.start_mark.line + 1 if node is not None else 1, text))
