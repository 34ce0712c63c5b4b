"""Logging for the commands: standard loggers under `ottla.*`, one line for each event, as text or as JSON.

    2026-01-31T12:00:00.123Z INFO ottla.broker partition orders-0 leads at epoch 4

Control characters in a message are escaped, so that what arrives from the network cannot forge a line. A
traceback follows its event on lines of its own in text, and is a field of it in JSON.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Final, TextIO

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


def set_up(level: str = "info", form: str = "text", stream: TextIO | None = None) -> None:
    """Send every event of Ottla from `level` on, and others' warnings, to `stream` (standard error)."""
    assert form in FORMATS
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("ottla").setLevel(level.upper())


class TextLines(logging.Formatter):
    """An event as a line of text."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(_ESCAPES)
        line = f"{_timestamp(record)} {record.levelname} {record.name} {message}"
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonLines(logging.Formatter):
    """An event as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        import json

        event = {
            "timestamp": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = _trace(self, record)
        if trace:
            event["exception"] = trace
        return json.dumps(event, ensure_ascii=False)


def _timestamp(record: logging.LogRecord) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{moment}.{int(record.msecs):03d}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)
