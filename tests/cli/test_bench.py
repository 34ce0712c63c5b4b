"""`ottla bench`."""

from __future__ import annotations


def test_throughput_and_latency_are_measured(ottla, topic):
    written = ottla.json("bench", "produce", topic, "-n", "500", "-s", "50B", "-X", "linger.ms=0")
    assert (written["records"], written["bytes"]) == (500, 25_000)
    assert written["latency_ms"]["p50"] <= written["latency_ms"]["max"]
    assert ottla.json("bench", "consume", topic, "-n", "500")["bytes"] == 25_000
    assert ottla.json("bench", "consume", topic, "-n", "400", "--arrow")["records"] >= 400
    assert ottla.json("bench", "latency", topic, "-n", "5")["records"] == 5
    assert "5 records, 500 B in" in ottla("bench", "produce", topic, "-n", "5", "--rate", "1000")


def test_consuming_an_empty_topic_fails_with_a_hint(ottla, topic):
    assert f"`ottla bench produce {topic}` fills it" in ottla("bench", "consume", topic, status=1)
