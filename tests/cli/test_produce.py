"""`ottla produce`, read back with `ottla consume`."""

from __future__ import annotations


def test_lines_become_records(ottla, topic):
    output = ottla.json("produce", topic, "-p", "1", given="one\ntwo\n\nlast without an end")
    assert output == {"topic": topic, "records": 4, "partitions": {"1": 4}}
    assert ottla("consume", topic, "-e", "-f", "%p %o %s\\n") == "1 0 one\n1 1 two\n1 2 \n1 3 last without an end\n"
    assert ottla("consume", topic, "-p", "1", "-o", "2", "-c", "2") == "\nlast without an end\n"
    assert ottla("consume", topic, "-o", "-1", "-e") == "last without an end\n"
    assert ottla("consume", topic, "-p", "0", "-e") == ""
    assert ottla("consume", topic, "-o", "end", "--timeout-ms", "50") == ""


def test_the_first_record_creates_the_topic(ottla, fresh_name):
    name = fresh_name()
    ottla("produce", name, "-p", "0", given="first\n")
    assert ottla("consume", name, "-e") == "first\n"


def test_keys_headers_and_nulls_are_written(ottla, topic):
    ottla("produce", topic, "-K", ":", "-H", "lang=en", "-Z", given="alice:two oranges\nbob:\nno key\n")
    shown = ottla("consume", topic, "-e", "-f", "%k|%s|%S|%h\\n").splitlines()
    assert sorted(shown) == ["alice|two oranges|11|lang=en", "bob||-1|lang=en", "|no key|6|lang=en"]
    ottla("produce", topic, "-D", ";", "-k", "fixed", given="a;b;c\n")
    assert ottla("consume", topic, "-e", "-f", "%k=%s ").count("fixed=") == 3


def test_files_are_read(ottla, topic, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"{name}\n")
    ottla("produce", topic, str(tmp_path / "one"), str(tmp_path / "two"), "-z", "lz4")
    assert sorted(ottla("consume", topic, "-e").splitlines()) == ["one", "two"]


def test_a_topic_is_copied_through_json(ottla, topic, fresh_name):
    ottla("produce", topic, "-K", ":", "-H", "a=b", given="alice:1\nbob:2\n")
    lines = ottla("consume", topic, "-e", "--json")
    copy = fresh_name()
    ottla("topics", "create", copy, "--partitions", "3")
    ottla("produce", copy, "--from-json", given=lines)
    form = "%T %k %s %h\\n"
    assert sorted(ottla("consume", copy, "-e", "-f", form)) == sorted(ottla("consume", topic, "-e", "-f", form))
    assert "not a record: no json" in ottla("produce", copy, "--from-json", given="no json\n", status=2)
