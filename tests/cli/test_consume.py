"""`ottla consume`."""

from __future__ import annotations

import pytest

from tests.cli.commands import Ottla


def test_records_are_found_by_time(ottla, topic):
    record = '{"payload": "%s", "ts": %d}'
    lines = "\n".join(record % (name, 1_000_000 + at) for at, name in enumerate(("early", "noon", "late")))
    ottla("produce", topic, "--from-json", "-p", "0", given=lines)
    assert ottla("consume", topic, "-o", "s@1000001", "-e") == "noon\nlate\n"


def test_a_group_continues_at_its_committed_offset(ottla, topic):
    ottla("produce", topic, "-p", "0", given="1\n2\n3\n")
    assert ottla("consume", topic, "-g", f"of-{topic}", "-c", "2") == "1\n2\n"
    assert ottla("consume", topic, "-g", f"of-{topic}", "-e") == "3\n"
    assert ottla("consume", topic, "-g", f"of-{topic}", "--timeout-ms", "50") == ""


def test_stored_starts_at_the_committed_offset_without_joining_the_group(ottla, topic):
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
        (["-f", "%y"], "unknown token %y"),
        (["-o", "somewhere"], "is not an offset"),
        (["-g", "g", "-p", "0"], "Leave out -g or -p"),
        (["-g", "g", "-o", "7"], "`ottla groups reset-offsets`"),
        (["-g", "g", "-o", "-7"], "`ottla groups reset-offsets`"),
        (["-g", "g", "-o", "s@2026-01-31T12:00"], "`ottla groups reset-offsets`"),
        (["-X", "fetch.max.byte=1"], "did you mean 'fetch_max_bytes'"),
        (["-X", "novalue"], "-X takes name=value"),
        (["--value-format", "avro"], "--registry"),
    ],
)
def test_wrong_usage_ends_with_status_2(arguments, words):
    result = Ottla("127.0.0.1:1").run("consume", "t", *arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_missing_topic_or_partition_is_named_with_a_hint(ottla, topic, fresh_name):
    assert "`ottla topics list`" in ottla("consume", fresh_name(), "-e", status=1)
    assert "has no partition 9; it has 3" in ottla("consume", topic, "-p", "9", "-e", status=1)
    assert "`ottla topics list`" in ottla("consume", fresh_name(), "-g", "g", "-e", status=1)


def test_deleted_records_are_reported(ottla, topic):
    for word in ("a", "b", "c"):
        ottla("produce", topic, "-p", "1", given=f"{word}\n")
    ottla("topics", "delete-records", topic, "-p", "1", "--before-offset", "2", "--execute")
    done = ottla.run("consume", topic, "-p", "1", "-o", "0", "-e")
    output = f"ottla: {topic}-1 starts at offset 2: earlier records are deleted\n"
    assert (done.exit_code, done.stdout, done.stderr) == (0, "c\n", output)
