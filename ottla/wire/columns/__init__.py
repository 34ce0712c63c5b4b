"""Records as Arrow columns, and back, without a Python object for each record.

A batch is a row of records of different lengths, each made of numbers of different lengths. So the records are found
one after another (`walk`), which is all that is done record by record; then each field of all records is read at once
with numpy, and Arrow copies all keys and all values out of the batches' bytes. Batches are put together before that:
a batch of a hundred records costs as much as one of ten thousand.

Needs numpy and pyarrow, the extra `ottla[arrow]`; nothing imports this but who works on columns.
"""

try:
    import numpy as _numpy  # noqa: F401
    import pyarrow as _pyarrow  # noqa: F401
except ImportError as missing:
    raise ImportError(
        f"columns need numpy and pyarrow: pip install 'ottla[arrow]' ({missing})", name=missing.name
    ) from None

from ottla.wire.columns.reading import record_batch
from ottla.wire.columns.schema import COLUMNS, schema_of
from ottla.wire.columns.writing import Rows, RowsBatch, cut

__all__ = ["COLUMNS", "Rows", "RowsBatch", "cut", "record_batch", "schema_of"]
