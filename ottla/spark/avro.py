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
from functools import cache
from typing import Any, Final

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
    TimestampType,
)

from ottla.serde.avro import AvroDeserializer, AvroSerializer
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
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "uuid": StringType(),
}


def from_avro(column: Column | str, schema: str, *, registry: str | None = None, mode: str = "FAILFAST") -> Column:
    """What the bytes mean, as the type that `spark_type` gives. Null stays null; what cannot be read fails the task,
    or is null with mode PERMISSIVE."""
    if mode not in MODES:
        raise BadOption(f"mode is {mode!r}; it can be {' or '.join(MODES)}")
    kind = spark_type(json.loads(schema))

    def read(value: bytes | None) -> Any:
        if mode == "PERMISSIVE" and not _fits(value, schema, registry):
            return None
        return _plain(_reader(schema, registry)(None if value is None else bytes(value)))

    return udf(read, kind, useArrow=False)(column)


def fits_avro(column: Column | str, schema: str, *, registry: str | None = None) -> Column:
    """Whether the bytes can be read, so that those that cannot may be put aside. Null can."""
    return udf(lambda value: _fits(value, schema, registry), BooleanType(), useArrow=False)(column)


def _fits(value: bytes | None, schema: str, registry: str | None) -> bool:
    """That the registry cannot be asked says nothing about the value, and is raised; that it lacks the schema does."""
    from fastavro.read import SchemaResolutionError

    # fastavro has no error of its own for bytes that are something else.
    unreadable = (EOFError, ValueError, LookupError, TypeError, ArithmeticError, SchemaResolutionError)
    try:
        _reader(schema, registry)(None if value is None else bytes(value))
    except unreadable:
        return False
    except RegistryError as error:
        if not error.not_found:
            raise
        return False
    return True


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


def _plain(value: Any) -> Any:
    """As Spark takes it: a UUID is text."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if type(value).__name__ == "UUID" else value


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
    if logical in LOGICAL:
        return LOGICAL[logical]
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
