"""`ottla groups`: list, describe, reset offsets, delete."""

from __future__ import annotations

import pytest

from ottla.blocking import Consumer
from ottla.local.waiting import wait_for


@pytest.fixture
def group(ottla, topic) -> str:
    """A group that has read five of ten records."""
    ottla("produce", topic, "-p", "1", given="".join(f"{n}\n" for n in range(10)))
    ottla("consume", topic, "-g", f"group-{topic}", "-c", "5")
    return f"group-{topic}"


def offsets(ottla, group):
    [described] = ottla.json("groups", "describe", group)
    return {each["partition"]: each["committed"] for each in described["partitions"]}


def test_groups_are_listed_and_described_with_their_lag(ottla, group, topic):
    assert {"group": group, "state": "Empty", "protocol": "classic"} in ottla.json("groups", "list")
    assert group in ottla("groups", "list")
    [described] = ottla.json("groups", "describe", group)
    assert (described["state"], described["lag"], described["members"]) == ("Empty", 5, [])
    lines = ottla("groups", "describe", group).splitlines()
    assert "  lag          5" in lines
    assert [topic, "1", "5", "10", "5", "-", "-"] in [line.split() for line in lines]


def test_members_are_shown_with_their_partitions(ottla, group, topic):
    with Consumer(topic, bootstrap_servers=ottla.bootstrap, group_id=group, client_id="cook") as consumer:
        wait_for(lambda: (consumer.getmany(timeout_ms=50), len(consumer.assignment()) == 3)[1], "an assignment")
        [described] = ottla.json("groups", "describe", group)
        assert described["state"] == "Stable"
        [member] = described["members"]
        assert member["client_id"] == "cook"
        assert len(member["partitions"]) == 3
        refused = ottla("groups", "reset-offsets", group, "--to-earliest", "--execute", status=2)
        assert "has members" in refused
        assert "Stop its consumers first" in refused
        assert "Stop its consumers first" in ottla("groups", "delete", group, status=1)


@pytest.mark.parametrize(
    ("aim", "reached"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "3"], 3),
        (["--to-offset", "99"], 10),
        (["--shift-by", "-2"], 3),
        (["--shift-by", "100"], 10),
        (["--to-datetime", "2001-01-01T00:00:00"], 0),
        (["--by-duration", "PT1H"], 0),
        (["--to-datetime", "2101-01-01T00:00:00"], 10),
    ],
)
def test_a_reset_is_shown_and_nothing_is_changed(ottla, group, topic, aim, reached):
    output = ottla.json("groups", "reset-offsets", group, "--topic", f"{topic}:1", *aim)
    assert output["executed"] is False
    assert output["partitions"] == [{"topic": topic, "partition": 1, "from": 5, "to": reached}]
    assert offsets(ottla, group)[1] == 5


def test_execute_commits_the_new_offsets(ottla, group, topic):
    assert "nothing was changed; --execute does it" in ottla("groups", "reset-offsets", group, "--to-earliest")
    ottla("groups", "reset-offsets", group, "--topic", topic, "--to-offset", "7", "--execute")
    assert offsets(ottla, group) == {0: 0, 1: 7, 2: 0}
    assert ottla("consume", topic, "-g", group, "-e") == "7\n8\n9\n"


def test_offsets_are_committed_for_a_new_group(ottla, topic):
    ottla("produce", topic, "-p", "0", given="a\nb\n")
    name = f"new-{topic}"
    assert "has committed nothing" in ottla("groups", "reset-offsets", name, "--to-latest", status=2)
    ottla("groups", "reset-offsets", name, "--topic", f"{topic}:0", "--to-offset", "1", "--execute")
    assert offsets(ottla, name) == {0: 1, 1: -1, 2: -1}


@pytest.mark.parametrize(
    "aim", [[], ["--to-earliest", "--to-latest"], ["--to-datetime", "noon"], ["--by-duration", "x"]]
)
def test_a_reset_takes_one_scenario(ottla, group, aim):
    ottla("groups", "reset-offsets", group, *aim, status=2)


def test_a_group_is_deleted(ottla, group):
    assert ottla("groups", "delete", group) == f"deleted group {group}\n"
    output = ottla("groups", "describe", group, status=1)
    assert f"group {group}: not found." in output
    assert "`ottla groups list`" in output
