"""One line for each event, as text or JSON."""

import io
import json
import logging
import re

import pytest

from ottla import logs


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


def test_what_a_client_sends_cannot_forge_a_line(log_into):
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
