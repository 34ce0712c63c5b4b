"""The columns a record has, with the names and types of Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS: Final = pa.list_(pa.field("element", HEADER))

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
"""Of `timestampType`."""

_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": HEADERS,
}

COLUMNS: Final = tuple(name for name in _TYPES if name != "headers")
"""Those that everybody gets who asks for none by name; headers cost more, and few have any."""


def schema_of(columns: Iterable[str] = COLUMNS) -> pa.Schema:
    """The schema with these columns, in this order. ValueError for a name that is none."""
    names = list(columns)
    for name in names:
        if name not in _TYPES:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(_TYPES)}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"columns are named once each, at least one; not {', '.join(names) or 'none'}")
    return pa.schema([pa.field(name, _TYPES[name]) for name in names])
