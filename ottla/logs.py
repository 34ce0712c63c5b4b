"""Logging for the commands: standard loggers under `ottla.*`, one line for each event, as text or as JSON.

    2026-01-31T12:00:00.123Z [broker 1] INFO ottla.broker partition orders-0 leads at epoch 4

Every line of a broker process has the broker id, so that the logs of several brokers can be read together.

Control characters in a message are escaped, so that input from the network cannot forge a line. A traceback follows its
event on lines of its own in text, and is a field of it in JSON.

Repeated lines are collapsed, because retries log the same line again and again. A line that was written within the last
minute is counted instead of written, as long as its logger writes nothing with another template. The count is written
when the logger writes another line, when the line has not come for 10 seconds, and at least every minute, with the time
at which it is written: so a change and the change back both appear, and lines are in the order of their times.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import suppress
from copy import copy
from types import TracebackType
from typing import Final, TextIO

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
REPEATED_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 10.0
"""A line that has not come for this long is over: its count is written."""
RACE_SECONDS: Final = 1.0
"""How far the times of two threads may differ. More means that the clock was set back."""
LINES_MAX: Final = 100
"""How many different lines of one template are remembered."""

ROOT: Final = "root"
"""The logger of the libraries that Ottla uses."""
KAFKA_LEVELS: Final = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
"""The levels of Kafka's tools, as numbers of `logging`."""
_OURS: Final = "ottla"

_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


_started = logging.NOTSET


def set_up(level: str = "info", form: str = "text", stream: TextIO | None = None, *, broker: int | None = None) -> None:
    """Write every event of Ottla from `level` on, and warnings of libraries, to `stream` (standard error), with the id
    of `broker` if this is a broker process."""
    assert form in FORMATS
    handler = Collapsing(stream or sys.stderr)
    handler.setFormatter(JsonLines(broker) if form == "json" else TextLines(broker))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    global _started
    _started = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger(_OURS).setLevel(_started)


def levels() -> dict[str, str]:
    """The level of every logger, its own or that of its parent, with Kafka's names."""
    loggers = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and (name == _OURS or name.startswith(f"{_OURS}."))
    ]
    found = {ROOT: logging.root.level} | {logger.name: logger.getEffectiveLevel() for logger in loggers}
    return {name: _kafka_level(found[name]) for name in sorted(found)}


def set_level(name: str, level: str | None) -> None:
    """Change the level of a logger of `levels`, in this process and until it ends. None: that of its parent again, or
    the one that it was started with."""
    logger = logging.getLogger(None if name == ROOT else name)
    if level is not None:
        logger.setLevel(KAFKA_LEVELS[level])
    else:
        logger.setLevel(_started if name == _OURS else logging.NOTSET)


def _kafka_level(number: int) -> str:
    return next((name for name, least in reversed(KAFKA_LEVELS.items()) if number >= least), "TRACE")


def take_all() -> None:
    """Log also what Python itself writes to standard error: warnings, and the exception that ends the process."""
    logging.captureWarnings(True)
    sys.excepthook = _uncaught


def write_counts() -> None:
    """Write the counts of all repeated lines now: before the last line of a process."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, Collapsing):
            handler.write_counts()


def _uncaught(kind: type[BaseException], failure: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("ottla").critical("uncaught %s", kind.__name__, exc_info=(kind, failure, trace))


class _Repeated:
    """A line that was written, and its repetitions since."""

    __slots__ = ("again", "last", "since")

    def __init__(self, record: logging.LogRecord) -> None:
        self.since = record.created
        self.again = 0
        self.last = record

    def is_due(self, now: float) -> bool:
        return now - self.last.created >= QUIET_SECONDS or self.last.created - self.since >= REPEATED_SECONDS

    def summary(self, now: float) -> logging.LogRecord:
        """An event with the count and the current time; the count begins again."""
        summary = copy(self.last)
        seconds = self.last.created - self.since
        times = "once more" if self.again == 1 else f"{self.again} more times"
        summary.msg = f"{self.last.getMessage()} ({times} within {seconds:.0f} s)"
        summary.args = summary.exc_info = summary.exc_text = summary.stack_info = None
        _stamp(summary, now)
        self.again, self.since = 0, self.last.created
        return summary


class Collapsing(logging.StreamHandler[TextIO]):
    """Writes events, and counts repetitions."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: dict[str, tuple[str, dict[str, _Repeated]]] = {}  # by logger: a template, and lines with it
        self._held: dict[_Repeated, None] = {}  # in the order of the first repetition
        self._timer: threading.Timer | None = None
        self._written_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        message = f"{record.levelno} {record.getMessage()}"
        template, lines = self._lines.get(record.name, ("", {}))
        if template != record.msg:
            self._write_counts(list(lines.values()), record.created)
            lines = {}
            self._lines[record.name] = (str(record.msg), lines)
        before = lines.get(message)
        if before is not None:
            before.again += 1
            before.last = record
            self._held[before] = None
        self._write_due(record.created)
        if before is not None:
            self._watch(record.created)
            return
        if len(lines) >= LINES_MAX:
            self._write_counts(list(lines.values()), record.created)
            lines.clear()
        lines[message] = _Repeated(record)
        self._write(record)

    def write_counts(self) -> None:
        with self._locked():
            self._write_counts(list(self._held), time.time())

    def close(self) -> None:
        with self._locked():
            self._write_counts(list(self._held), time.time())
            self._lines.clear()
            if self._timer is not None:
                self._timer.cancel()
        super().close()

    def _locked(self) -> threading.RLock:
        assert self.lock is not None
        return self.lock

    def _watch(self, now: float) -> None:
        """Write a count also if no line follows."""
        if self._held and self._timer is None:
            due = min(each.last.created for each in self._held) + QUIET_SECONDS
            self._timer = threading.Timer(max(due - now, 0.01), self._timer_fired)
            self._timer.daemon = True
            with suppress(RuntimeError):  # no thread is available: the next line writes it, or the end
                self._timer.start()

    def _timer_fired(self) -> None:
        with self._locked():
            self._timer = None
            self._write_due(time.time())
            self._watch(time.time())

    def _write_due(self, now: float) -> None:
        if self._held:
            self._write_counts([each for each in self._held if each.is_due(now)], now)

    def _write_counts(self, lines: list[_Repeated], now: float) -> None:
        for each in lines:
            if each.again:
                self._held.pop(each, None)
                self._write(each.summary(now))

    def _write(self, record: logging.LogRecord) -> None:
        """In the order of times, also between threads."""
        if 0 < self._written_at - record.created < RACE_SECONDS:
            record = copy(record)
            _stamp(record, self._written_at)
        self._written_at = record.created
        super().emit(record)


class TextLines(logging.Formatter):
    """An event as a line of text."""

    def __init__(self, broker: int | None = None) -> None:
        super().__init__()
        self._broker = "" if broker is None else f"[broker {broker}] "

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(_ESCAPES)
        line = f"{_timestamp(record)} {self._broker}{record.levelname} {record.name} {message}"
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonLines(logging.Formatter):
    """An event as a JSON object on one line."""

    def __init__(self, broker: int | None = None) -> None:
        super().__init__()
        self._broker = {} if broker is None else {"broker": broker}

    def format(self, record: logging.LogRecord) -> str:
        import json

        event = {
            "timestamp": _timestamp(record),
            **self._broker,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = _trace(self, record)
        if trace:
            event["exception"] = trace
        return json.dumps(event, ensure_ascii=False)


def event(level: int, logger: str, message: str) -> dict[str, str]:
    """The fields of an event with the current time, for a line with further fields."""
    record = logging.LogRecord(logger, level, "", 0, message, None, None)
    return {"timestamp": _timestamp(record), "level": record.levelname, "logger": logger, "message": message}


def _stamp(record: logging.LogRecord, moment: float) -> None:
    record.created, record.msecs = moment, moment % 1 * 1000


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
