"""One line for each event, as text or JSON."""

import io
import json
import logging
import re

import pytest

from ottla import logs
from ottla.local.waiting import wait_for


@pytest.fixture
def log_into():
    root, ours = logging.getLogger(), logging.getLogger("ottla")
    handlers, level, our_level = list(root.handlers), root.level, ours.level

    def set_up(**options):
        stream = io.StringIO()
        logs.set_up(stream=stream, **options)
        return stream

    yield set_up
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(our_level)


def test_an_event_is_a_line_with_time_level_and_logger(log_into):
    stream = log_into()
    logging.getLogger("ottla.broker").info("partition %s leads", "t-0")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO ottla\.broker partition t-0 leads\n", stream.getvalue()
    )


def test_an_event_is_a_json_object_on_a_line(log_into):
    stream = log_into(form="json")
    logging.getLogger("ottla.broker").warning("two\nlines %s", "é")
    event = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert event["level"] == "WARNING"
    assert event["logger"] == "ottla.broker"
    assert event["message"] == "two\nlines é"


def test_client_input_cannot_forge_a_log_line(log_into):
    stream = log_into()
    logging.getLogger("ottla.net").warning("client id %s", "x\n2026-01-01T00:00:00.000Z INFO ottla all is well\x1b[2J")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_a_traceback_goes_with_its_event(log_into):
    for form in logs.FORMATS:
        stream = log_into(form=form)
        try:
            raise OSError("disk gone")
        except OSError:
            logging.getLogger("ottla.log").exception("cannot append")
        assert "OSError: disk gone" in stream.getvalue()
        if form == "json":
            assert "Traceback" in json.loads(stream.getvalue())["exception"]


def test_levels_hold_for_us_and_others_only_warn(log_into):
    stream = log_into(level="debug")
    logging.getLogger("ottla.log").debug("ours")
    logging.getLogger("asyncio").info("theirs")
    logging.getLogger("asyncio").warning("slow callback")
    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == [
        "DEBUG ottla.log ours",
        "WARNING asyncio slow callback",
    ]


class Events:
    """Events at moments of the test's choice. Brokers that other tests left running in this process log, too: their
    loggers are not read."""

    LOGGERS = ("ottla.first", "ottla.second")

    def __init__(self, monkeypatch, stream):
        self.now = 1000.0
        self.stream = stream
        monkeypatch.setattr("logging.time.time", lambda: self.now)
        monkeypatch.setattr("logging.time.time_ns", lambda: int(self.now * 1e9))

    def say(self, message, *args, logger="ottla.first", after=0.0):
        self.now += after
        logging.getLogger(logger).info(message, *args)

    def lines(self):
        split = [line.split(" ", 3) for line in self.stream.getvalue().splitlines()]
        return [message for _, _, logger, message in split if logger in self.LOGGERS]


@pytest.fixture
def events(log_into, monkeypatch):
    return Events(monkeypatch, log_into())


def test_repeated_log_lines_are_counted(events):
    for _ in range(40):
        events.say("following broker %d: refused; trying again", 2, after=0.5)
        events.say("following broker %d: refused; trying again", 3)
    assert events.lines() == [
        "following broker 2: refused; trying again",
        "following broker 3: refused; trying again",
    ]
    events.say("following broker %d again", 2)
    assert events.lines()[2:] == [
        "following broker 2: refused; trying again (39 more times within 20 s)",
        "following broker 3: refused; trying again (39 more times within 20 s)",
        "following broker 2 again",
    ]


def test_a_repeated_log_line_is_written_every_minute(events):
    for _ in range(130):
        events.say("trying again", after=1.0)
    assert events.lines() == ["trying again", *["trying again (60 more times within 60 s)"] * 2]


def test_a_change_and_the_change_back_are_never_left_out(events):
    for _ in range(3):
        events.say("out of touch (%s)", "no answer")
        events.say("in touch")
        events.say("another logger's line does not matter", logger="ottla.second")
    reported = [line for line in events.lines() if "another" not in line]
    assert reported == ["out of touch (no answer)", "in touch"] * 3


def test_counts_are_logged_at_the_end(events):
    for _ in range(3):
        events.say("trying again")
    for handler in logging.getLogger().handlers:
        handler.close()
    assert events.lines() == ["trying again", "trying again (2 more times within 0 s)"]


def test_a_count_is_logged_before_another_loggers_line_when_it_is_due(events):
    for _ in range(3):
        events.say("trying again", after=1.0)
    events.say("meanwhile", logger="ottla.second", after=logs.QUIET_SECONDS - 1)
    events.say("later", logger="ottla.second", after=1.0)
    events.say("another matter", after=1.0)
    assert events.lines() == [
        "trying again",
        "meanwhile",
        "trying again (2 more times within 2 s)",
        "later",
        "another matter",
    ]
    stamps = [line[:24] for line in events.stream.getvalue().splitlines()]
    assert stamps == sorted(stamps)
    assert stamps[2] == stamps[3], "the time at which it is told"


def test_a_count_is_logged_though_no_other_line_follows(log_into, monkeypatch):
    monkeypatch.setattr(logs, "QUIET_SECONDS", 0.05)
    stream = log_into()
    for _ in range(3):
        logging.getLogger("ottla.replication").info("trying again")
    wait_for(lambda: "trying again (2 more times within 0 s)" in stream.getvalue(), "the count")


def test_counts_are_logged_before_the_last_line(events):
    for _ in range(3):
        events.say("trying again")
    logs.write_counts()
    events.say("stopped", logger="ottla.second")
    for handler in logging.getLogger().handlers:
        handler.close()
    assert events.lines() == ["trying again", "trying again (2 more times within 0 s)", "stopped"]


def test_threads_that_speak_at_the_same_time_are_in_order(events):
    late = logging.LogRecord("ottla.second", logging.INFO, __file__, 1, "made first, written second", (), None)
    events.say("made second, written first", after=0.002)
    logging.getLogger().handle(late)
    first, second = events.stream.getvalue().splitlines()
    assert first[:24] == second[:24]
    events.say("the clock was set back", after=-3600)
    assert events.stream.getvalue().splitlines()[2] < first


def test_lines_name_the_broker_that_speaks(log_into):
    stream = log_into(broker=3)
    logging.getLogger("ottla.cluster").warning("disconnected from ZooKeeper")
    assert stream.getvalue().endswith("Z [broker 3] WARNING ottla.cluster disconnected from ZooKeeper\n")
    stream = log_into(broker=3, form="json")
    logging.getLogger("ottla.cluster").warning("disconnected from ZooKeeper")
    assert json.loads(stream.getvalue())["broker"] == 3


def test_memory_for_what_was_said_is_limited(events):
    for number in range(10 * logs.LINES_MAX):
        events.say("broker %d", number)
    (handler,) = (each for each in logging.getLogger().handlers if isinstance(each, logs.Collapsing))
    assert len(handler._lines["ottla.first"][1]) <= logs.LINES_MAX
    assert len(events.lines()) == 10 * logs.LINES_MAX
