"""`ottla produce` and `ottla consume`, and how records are shown."""

from __future__ import annotations

import json

import pytest

from ottla.cli.formats import BadFormat, compiled, envelope
from ottla.cli.quantities import Size, duration_ms, moment_ms, shown_ms
from ottla.client.consuming.consumer_records import ConsumerRecord
from tests.cli.commands import Ottla

RECORD: ConsumerRecord[bytes | None, bytes | None] = ConsumerRecord(
    "orders", 2, 41, 1_700_000_000_000, b"alice", b"two oranges", (("lang", b"en"), ("none", None))
)
EMPTY = RECORD._replace(key=None, value=None, headers=())


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("%s\\n", b"two oranges\n"),
        ("%t %p %o %k %s\\n", b"orders 2 41 alice two oranges\n"),
        ("%T|%S|%K|%h", b"1700000000000|11|5|lang=en,none="),
        ("100%% \\t\\x41\\\\", b"100% \tA\\"),
        ("%R", b"\0\0\0\x0b"),
        ("%", b"%"),
    ],
)
def test_kcats_tokens_are_understood(template, shown):
    assert compiled(template)(RECORD) == shown


def test_what_is_not_there_has_no_text_and_a_length_of_minus_one():
    assert compiled("[%k][%s][%h]%K%S")(EMPTY) == b"[][][]-1-1"


def test_an_unknown_token_is_refused_by_name():
    with pytest.raises(BadFormat, match="%x means nothing"):
        compiled("%x")
    with pytest.raises(BadFormat, match=r"\\q means nothing"):
        compiled("\\q")


def test_the_envelope_is_kcats():
    told = json.loads(envelope(RECORD))
    assert told["headers"] == ["lang", "en", "none", None]
    assert (told["key"], told["payload"], told["ts"]) == ("alice", "two oranges", 1_700_000_000_000)
    assert json.loads(envelope(EMPTY))["payload"] is None


def test_quantities_are_read_as_people_write_them():
    size = Size()
    sizes = {"100": 100, "10kB": 10_000, "1.5MB": 1_500_000, "1MiB": 2**20}
    assert {text: size.convert(text, None, None) for text in sizes} == sizes
    durations = {"PT1H30M": 5_400_000, "90s": 90_000, "7d": 604_800_000, "P1DT1S": 86_401_000}
    assert {text: duration_ms(text) for text in durations} == durations
    assert moment_ms("2026-01-31T12:00:00+00:00") == moment_ms("1769860800000") == 1769860800000
    assert shown_ms(1769860800123) == "2026-01-31 12:00:00.123Z"
    for bad in ("", "soon", "PT"):
        with pytest.raises(ValueError):
            duration_ms(bad)


def test_lines_become_records_and_records_lines(ottla, topic):
    told = ottla.json("produce", topic, "-p", "1", given="one\ntwo\n\nlast without an end")
    assert told == {"topic": topic, "records": 4, "partitions": {"1": 4}}
    assert ottla("consume", topic, "-e", "-f", "%p %o %s\\n") == "1 0 one\n1 1 two\n1 2 \n1 3 last without an end\n"
    assert ottla("consume", topic, "-p", "1", "-o", "2", "-c", "2") == "\nlast without an end\n"
    assert ottla("consume", topic, "-o", "-1", "-e") == "last without an end\n"
    assert ottla("consume", topic, "-p", "0", "-e") == ""
    assert ottla("consume", topic, "-o", "end", "--timeout-ms", "50") == ""


def test_a_topic_that_its_first_record_makes_has_a_partition_0(ottla, fresh_name):
    name = fresh_name()
    ottla("produce", name, "-p", "0", given="first\n")
    assert ottla("consume", name, "-e") == "first\n"


def test_keys_headers_and_nulls_are_written(ottla, topic):
    ottla("produce", topic, "-K", ":", "-H", "lang=en", "-Z", given="alice:two oranges\nbob:\nno key\n")
    shown = ottla("consume", topic, "-e", "-f", "%k|%s|%S|%h\\n").splitlines()
    assert sorted(shown) == ["alice|two oranges|11|lang=en", "bob||-1|lang=en", "|no key|6|lang=en"]
    ottla("produce", topic, "-D", ";", "-k", "fixed", given="a;b;c\n")
    assert ottla("consume", topic, "-e", "-f", "%k=%s ").count("fixed=") == 3


def test_files_are_read_too(ottla, topic, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"{name}\n")
    ottla("produce", topic, str(tmp_path / "one"), str(tmp_path / "two"), "-z", "lz4")
    assert sorted(ottla("consume", topic, "-e").splitlines()) == ["one", "two"]


def test_a_topic_is_copied_with_everything_through_json(ottla, topic, fresh_name):
    ottla("produce", topic, "-K", ":", "-H", "a=b", given="alice:1\nbob:2\n")
    lines = ottla("consume", topic, "-e", "--json")
    copy = fresh_name()
    ottla("topics", "create", copy, "--partitions", "3")
    ottla("produce", copy, "--from-json", given=lines)
    form = "%T %k %s %h\\n"
    assert sorted(ottla("consume", copy, "-e", "-f", form)) == sorted(ottla("consume", topic, "-e", "-f", form))
    assert "no record: no json" in ottla("produce", copy, "--from-json", given="no json\n", status=2)


def test_records_are_found_by_time(ottla, topic):
    record = '{"payload": "%s", "ts": %d}'
    lines = "\n".join(record % (name, 1_000_000 + at) for at, name in enumerate(("early", "noon", "late")))
    ottla("produce", topic, "--from-json", "-p", "0", given=lines)
    assert ottla("consume", topic, "-o", "s@1000001", "-e") == "noon\nlate\n"


def test_a_group_goes_on_where_it_was(ottla, topic):
    ottla("produce", topic, "-p", "0", given="1\n2\n3\n")
    assert ottla("consume", topic, "-g", f"of-{topic}", "-c", "2") == "1\n2\n"
    assert ottla("consume", topic, "-g", f"of-{topic}", "-e") == "3\n"
    assert ottla("consume", topic, "-g", f"of-{topic}", "--timeout-ms", "50") == ""


def test_what_a_group_has_stored_is_where_reading_begins_without_joining_it(ottla, topic):
    group = f"of-{topic}"
    for partition in ("0", "1"):
        ottla("produce", topic, "-p", partition, given=f"{partition}a\n{partition}b\n{partition}c\n")
    ottla("groups", "reset-offsets", group, "--topic", topic, "--to-offset", "2", "--execute")
    assert sorted(ottla("consume", topic, "-g", group, "-o", "stored", "-e").split()) == ["0c", "1c"]
    assert ottla("consume", topic, "-g", group, "-o", "stored", "--timeout-ms", "50") == ""
    ottla("produce", topic, "-p", "1", given="1d\n")
    ottla("produce", topic, "-p", "0", given="0d\n")
    assert ottla("consume", topic, "-X", f"group.id={group}", "-o", "stored", "-p", "1", "-e") == "1d\n"
    assert ottla("consume", topic, "-g", group, "-o", "stored", "-e") == "0d\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "stored"], "Name the group"),
        (["-f", "%y"], "%y means nothing"),
        (["-o", "somewhere"], "no place to begin"),
        (["-g", "g", "-p", "0"], "Leave out -g or -p"),
        (["-g", "g", "-o", "7"], "`ottla groups reset-offsets`"),
        (["-g", "g", "-o", "-7"], "`ottla groups reset-offsets`"),
        (["-g", "g", "-o", "s@2026-01-31T12:00"], "`ottla groups reset-offsets`"),
        (["-X", "fetch.max.byte=1"], "did you mean 'fetch_max_bytes'"),
        (["-X", "novalue"], "-X takes name=value"),
        (["--value-format", "avro"], "--registry"),
    ],
)
def test_what_cannot_be_meant_is_misuse(arguments, words):
    result = Ottla("127.0.0.1:1").run("consume", "t", *arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_what_is_not_there_is_named_with_what_to_do(ottla, topic, fresh_name):
    assert "`ottla topics list`" in ottla("consume", fresh_name(), "-e", status=1)
    assert "has no partition 9; it has 3" in ottla("consume", topic, "-p", "9", "-e", status=1)
    assert "`ottla topics list`" in ottla("consume", fresh_name(), "-g", "g", "-e", status=1)


def test_nobody_there_is_worth_another_try():
    for command in (["consume", "t"], ["produce", "t"], ["groups", "list"], ["bench", "produce", "t"]):
        result = Ottla("127.0.0.1:1").run(*command, given="x\n")
        assert result.exit_code == 75, result.output
        assert "cannot connect to 127.0.0.1:1: Connection refused" in result.output
        assert "-b HOST:PORT" in result.output


def test_records_that_are_deleted_are_not_passed_over_in_silence(ottla, topic):
    for word in ("a", "b", "c"):
        ottla("produce", topic, "-p", "1", given=f"{word}\n")
    ottla("topics", "delete-records", topic, "-p", "1", "--before-offset", "2", "--execute")
    done = ottla.run("consume", topic, "-p", "1", "-o", "0", "-e")
    told = f"ottla: {topic}-1 starts at offset 2: what was before is deleted\n"
    assert (done.exit_code, done.stdout, done.stderr) == (0, "c\n", told)
