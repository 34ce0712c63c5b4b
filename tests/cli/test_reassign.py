"""`ottla reassign`, without anything to move."""

from __future__ import annotations


def test_moves_and_elections_without_effect_are_reported(ottla, topic):
    moved = ottla.json("reassign", "start", "--move", f"{topic}-0=1")
    assert moved == {"moving": [{"topic": topic, "partition": 0, "replicas": [1]}]}
    assert ottla.json("reassign", "status") == []
    assert ottla.json("elect", topic) == {"elected": []}
    assert ottla("elect", f"{topic}-1") == "no election was needed\n"


def test_an_invalid_plan_is_refused(ottla, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("{}")
    assert "is not a plan" in ottla("reassign", "start", str(file), status=2)
