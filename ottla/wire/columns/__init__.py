"""Records as Arrow columns, and back, without a Python object for each record.

Records and their varints have different lengths. So the start of each record is found one after another (`walk`); then
each field of all records is decoded at once with numpy, and Arrow copies all keys and values out of the batches. All
batches are joined first, so that small batches cost no more than large ones.

Needs numpy and pyarrow, the extra `ottla[arrow]`.
"""

try:
    import numpy as _numpy  # noqa: F401
    import pyarrow as _pyarrow  # noqa: F401
except ImportError as missing:
    raise ImportError(
        f"columns need numpy and pyarrow: pip install 'ottla[arrow]' ({missing})", name=missing.name
    ) from None

from ottla.wire.columns.reading import COLUMNS, record_batch, schema_of
from ottla.wire.columns.writing import Rows, RowsBatch, cut

__all__ = ["COLUMNS", "Rows", "RowsBatch", "cut", "record_batch", "schema_of"]
