"""Logging for the commands: standard loggers under `ottla.*`, one line for each event, as text or as JSON.

    2026-01-31T12:00:00.123Z [broker 1] INFO ottla.broker partition orders-0 leads at epoch 4

The process of a broker names it in every line, so that the logs of several brokers can be read together.

Control characters in a message are escaped, so that what arrives from the network cannot forge a line. A
traceback follows its event on lines of its own in text, and is a field of it in JSON.

Whoever tries again and again says the same thing again and again. A line that was said within the last minute is not
said again but counted, as long as its logger says nothing of another kind (with another template). The number is told
then, when the line has not come again for 10 seconds, and at least every minute, with the time at which it is told: so
a change and the change back are never left out, and lines are in the order of their times.
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
"""What has not been said for this long is over, for now: how often it was said is told."""
RACE_SECONDS: Final = 1.0
"""A line of one thread may be later than that of another by this much. More is a clock that was set back."""
SAID_MAX: Final = 100
"""Different lines with one template that are remembered."""

ROOT: Final = "root"
"""The logger of everything that is not Ottla's: the libraries it uses."""
KAFKA_LEVELS: Final = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
"""The levels that Kafka's tools speak of, in the numbers of `logging`."""
_OURS: Final = "ottla"

_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


_started = logging.NOTSET


def set_up(level: str = "info", form: str = "text", stream: TextIO | None = None, *, broker: int | None = None) -> None:
    """Send every event of Ottla from `level` on, and others' warnings, to `stream` (standard error), as said by
    `broker` if this is the process of one."""
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
    """The level of every logger there is, its own or its parent's, in Kafka's words."""
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
    """Also what Python itself would write to standard error: warnings, and the exception that ends the process."""
    logging.captureWarnings(True)
    sys.excepthook = _uncaught


def tell_counts() -> None:
    """Of all lines that came again, now: what follows is to be the last line."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, Collapsing):
            handler.tell_counts()


def _uncaught(kind: type[BaseException], failure: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("ottla").critical("uncaught %s", kind.__name__, exc_info=(kind, failure, trace))


class _Said:
    """A line that was written, and how often it came again since."""

    __slots__ = ("again", "last", "since")

    def __init__(self, record: logging.LogRecord) -> None:
        self.since = record.created
        self.again = 0
        self.last = record

    def is_due(self, now: float) -> bool:
        return now - self.last.created >= QUIET_SECONDS or self.last.created - self.since >= REPEATED_SECONDS

    def told(self, now: float) -> logging.LogRecord:
        """An event of this moment with the count, which begins anew."""
        told = copy(self.last)
        seconds = self.last.created - self.since
        times = "once more" if self.again == 1 else f"{self.again} more times"
        told.msg = f"{self.last.getMessage()} ({times} within {seconds:.0f} s)"
        told.args = told.exc_info = told.exc_text = told.stack_info = None
        _stamp(told, now)
        self.again, self.since = 0, self.last.created
        return told


class Collapsing(logging.StreamHandler[TextIO]):
    """Writes events, and counts those that were written a moment ago."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._said: dict[str, tuple[str, dict[str, _Said]]] = {}  # by logger: a template, and what was said with it
        self._held: dict[_Said, None] = {}  # in the order in which they came again first
        self._timer: threading.Timer | None = None
        self._written_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        message = f"{record.levelno} {record.getMessage()}"
        template, said = self._said.get(record.name, ("", {}))
        if template != record.msg:
            self._tell(list(said.values()), record.created)
            said = {}
            self._said[record.name] = (str(record.msg), said)
        before = said.get(message)
        if before is not None:
            before.again += 1
            before.last = record
            self._held[before] = None
        self._tell_due(record.created)
        if before is not None:
            self._watch(record.created)
            return
        if len(said) >= SAID_MAX:
            self._tell(list(said.values()), record.created)
            said.clear()
        said[message] = _Said(record)
        self._write(record)

    def tell_counts(self) -> None:
        with self._locked():
            self._tell(list(self._held), time.time())

    def close(self) -> None:
        with self._locked():
            self._tell(list(self._held), time.time())
            self._said.clear()
            if self._timer is not None:
                self._timer.cancel()
        super().close()

    def _locked(self) -> threading.RLock:
        assert self.lock is not None
        return self.lock

    def _watch(self, now: float) -> None:
        """A count is told even if nobody ever says anything again."""
        if self._held and self._timer is None:
            due = min(each.last.created for each in self._held) + QUIET_SECONDS
            self._timer = threading.Timer(max(due - now, 0.01), self._timer_fired)
            self._timer.daemon = True
            with suppress(RuntimeError):  # no thread can be had; then the next line tells it, or the end
                self._timer.start()

    def _timer_fired(self) -> None:
        with self._locked():
            self._timer = None
            self._tell_due(time.time())
            self._watch(time.time())

    def _tell_due(self, now: float) -> None:
        if self._held:
            self._tell([each for each in self._held if each.is_due(now)], now)

    def _tell(self, said: list[_Said], now: float) -> None:
        for each in said:
            if each.again:
                self._held.pop(each, None)
                self._write(each.told(now))

    def _write(self, record: logging.LogRecord) -> None:
        """In the order of their times, whichever thread came first."""
        if 0 < self._written_at - record.created < RACE_SECONDS:
            record = copy(record)
            _stamp(record, self._written_at)
        self._written_at = record.created
        super().emit(record)


class TextLines(logging.Formatter):
    """An event as a line of text."""

    def __init__(self, broker: int | None = None) -> None:
        super().__init__()
        self._speaker = "" if broker is None else f"[broker {broker}] "

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(_ESCAPES)
        line = f"{_timestamp(record)} {self._speaker}{record.levelname} {record.name} {message}"
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonLines(logging.Formatter):
    """An event as a JSON object on one line."""

    def __init__(self, broker: int | None = None) -> None:
        super().__init__()
        self._speaker = {} if broker is None else {"broker": broker}

    def format(self, record: logging.LogRecord) -> str:
        import json

        event = {
            "timestamp": _timestamp(record),
            **self._speaker,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = _trace(self, record)
        if trace:
            event["exception"] = trace
        return json.dumps(event, ensure_ascii=False)


def event(level: int, logger: str, message: str) -> dict[str, str]:
    """The fields of an event of this moment, for a line that has others, too."""
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
