"""Columns of Avro, through fastavro: PySpark's own `from_avro` needs a jar.

    from ottla.spark.avro import from_avro, to_avro

    orders.select(from_avro("value", schema).alias("order")).select("order.*")
    rows.select(to_avro(struct("id", "amount"), schema).alias("value"))

With `registry=` (an address) values are in Confluent's wire format, each read by the schema it was written with. Values
become Python objects one at a time, so this is slower than JSON, which Spark reads by itself. Needs `ottla[avro]` where
the tasks run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

from pyspark.sql import Column
from pyspark.sql.functions import udf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from ottla.config.named_options import any_of
from ottla.serde.avro_serde import AvroDeserializer, AvroSerializer
from ottla.serde.registry import RegistryError
from ottla.spark.options import BadOption

MODES: Final = ("FAILFAST", "PERMISSIVE")
PLAIN: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
LOGICAL: Final[dict[str, DataType]] = {
    "int-date": DateType(),
    "long-time-micros": TimeType(6),
    "long-timestamp-millis": TimestampType(),
    "long-timestamp-micros": TimestampType(),
    "long-local-timestamp-millis": TimestampNTZType(),
    "long-local-timestamp-micros": TimestampNTZType(),
    "string-uuid": StringType(),
}
"""By Avro type and logical type, as Spark's own functions map them. time-millis is a number there."""


def from_avro(column: Column | str, schema: str, *, registry: str | None = None, mode: str = "FAILFAST") -> Column:
    """What the bytes mean, as the type that `spark_type` gives. Null stays null; what cannot be read fails the task,
    or is null with mode PERMISSIVE."""
    if mode not in MODES:
        raise BadOption(f"mode is {mode!r}; it can be {any_of(MODES)}")
    kind = spark_type(json.loads(schema))

    def read(value: bytes | None) -> Any:
        if mode != "PERMISSIVE":
            return _plain(_reader(schema, registry)(None if value is None else bytes(value)), kind)
        fits, found = _read(value, schema, registry)
        return _plain(found, kind) if fits else None

    return udf(read, kind, useArrow=False)(column)


def fits_avro(column: Column | str, schema: str, *, registry: str | None = None) -> Column:
    """Whether the bytes can be decoded; others may be sent to the dead letters. Null can."""
    return udf(lambda value: _read(value, schema, registry)[0], BooleanType(), useArrow=False)(column)


def _read(value: bytes | None, schema: str, registry: str | None) -> tuple[bool, Any]:
    """Whether the bytes can be read, and as what. That the registry cannot be asked says nothing about the value, and
    is raised; that it lacks the schema does."""
    from fastavro.read import SchemaResolutionError

    # fastavro has no error of its own for bytes that are something else.
    unreadable = (EOFError, ValueError, LookupError, TypeError, ArithmeticError, SchemaResolutionError)
    try:
        return True, _reader(schema, registry)(None if value is None else bytes(value))
    except unreadable:
        return False, None
    except RegistryError as error:
        if not error.not_found:
            raise
        return False, None


def to_avro(column: Column | str, schema: str, *, registry: str | None = None, subject: str | None = None) -> Column:
    """As bytes. A struct's columns are the fields of the record that have their names."""
    if registry is not None and subject is None:
        raise BadOption("to_avro with a registry needs the subject to register the schema under, as orders-value")

    def written(value: Any) -> bytes | None:
        plain = value.asDict(recursive=True) if isinstance(value, Row) else value
        return _writer(schema, registry, subject)(plain)

    return udf(written, BinaryType(), useArrow=False)(column)


@cache
def _reader(schema: str, registry: str | None) -> Callable[[bytes | None], Any]:
    return AvroDeserializer(registry, schema=schema)


@cache
def _writer(schema: str, registry: str | None, subject: str | None) -> Callable[[Any], bytes | None]:
    return AvroSerializer(schema, registry=registry, subject=subject)


def _plain(value: Any, kind: DataType) -> Any:
    """As Spark takes it for this type: a UUID is text, a time of day in a column of numbers is one."""
    match value:
        case dict() if isinstance(kind, StructType):
            kinds = {field.name: field.dataType for field in kind.fields}
            return {name: _plain(each, kinds[name]) for name, each in value.items()}
        case dict() if isinstance(kind, MapType):
            return {name: _plain(each, kind.valueType) for name, each in value.items()}
        case list() if isinstance(kind, ArrayType):
            return [_plain(each, kind.elementType) for each in value]
        case time() if isinstance(kind, IntegerType | LongType):
            unit = timedelta(milliseconds=1) if isinstance(kind, IntegerType) else timedelta(microseconds=1)
            return (datetime.combine(date.min, value) - datetime.min) // unit
        case UUID():
            return str(value)
    return value


def spark_type(schema: Any) -> DataType:
    """Of an Avro schema, as Spark's own functions map it."""
    return _type(schema, {})


def _type(schema: Any, named: dict[str, DataType]) -> DataType:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise BadOption(f"a union of {json.dumps(others)} has no type in Spark; null and one other can be")
        return _type(others[0], named)
    if isinstance(schema, str):
        if schema not in PLAIN and schema not in named:
            raise BadOption(f"the Avro schema names {schema!r}, which it does not define, or only inside of itself")
        return named.get(schema) or PLAIN[schema]
    made = _complex(schema, named)
    if "name" in schema:
        named[schema["name"]] = made
    return made


def _complex(schema: dict[str, Any], named: dict[str, DataType]) -> DataType:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return DecimalType(schema["precision"], schema.get("scale", 0))
    meant = LOGICAL.get(f"{schema['type']}-{logical}")
    if meant is not None:
        return meant
    match schema["type"]:
        case "record":
            fields = [(each["name"], each["type"]) for each in schema["fields"]]
            return StructType([StructField(name, _type(kind, named)) for name, kind in fields])
        case "array":
            return ArrayType(_type(schema["items"], named))
        case "map":
            return MapType(StringType(), _type(schema["values"], named))
        case kind:
            return _type(kind, named)
