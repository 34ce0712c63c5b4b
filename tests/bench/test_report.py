"""The report: medians, ties, targets met and missed."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from bench import report
from bench.cell import Better, Metric, Settings
from bench.cells import CELLS
from bench.compare import Spread, compare, number, within
from bench.protocol import WALL, Results

FASTER = Metric("mb_s", "Produce", "MB/s", Better.HIGHER, 1.0)
SOONER = Metric("p50_us", "Latency", "µs", Better.LOWER, 0.5)


@pytest.mark.parametrize(
    ("metric", "ours", "theirs", "verdict"),
    [
        (FASTER, [200, 210, 220], [100, 101, 102], "met"),
        (FASTER, [98, 100, 103], [100, 101, 102], "tie"),
        (FASTER, [50, 51, 52], [100, 102, 104], "missed ×2.00"),
        (SOONER, [20, 21, 22], [100, 101, 102], "met"),
        (SOONER, [49, 50, 52], [100, 101, 102], "at the target"),
        (SOONER, [100, 101, 102], [100, 101, 102], "missed ×2.00"),
    ],
)
def test_a_verdict_depends_on_the_spread(metric, ours, theirs, verdict):
    found = compare(metric, ours, theirs)
    assert found is not None
    assert found.verdict() == verdict


def test_ranges_that_touch_are_a_tie():
    assert Spread(2, 1, 3).overlaps(Spread(4, 3, 5))
    assert not Spread(2, 1, 3).overlaps(Spread(4.5, 4, 5))


def test_cells_without_a_measurement_are_not_compared():
    assert compare(FASTER, [], [1.0]) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (1.5, "1.50"), (45.67, "45.7"), (1234.5, "1,230"), (98765, "98,800")],
)
def test_numbers_keep_three_digits(value, text):
    assert number(value) == text


@pytest.fixture
def results():
    """Every metric of every cell: two runs of 10 and 12 for us, 20 and 24 for the peer."""
    found = Results(Settings(), {"Memory": "8 GiB"}, {"ottla": "1", "kafka": "4"}, "2026-01-01", ["A note."])
    for cell in CELLS:
        for metric in cell.metrics:
            for value in (10.0, 12.0):
                found.add(cell.name, "ottla", {metric.key: value})
                found.add(cell.name, "kafka", {metric.key: 2 * value})
    return found


def test_the_page_has_every_measure_and_note(results):
    page = report.page(results)
    for cell in CELLS:
        for metric in cell.metrics:
            assert f"| `{cell.name}` | {metric.label}, {metric.unit} | 11.0 (10.0–12.0) | 22.0 (20.0–24.0) |" in page
    assert "| `round-trip` | Latency p50 | 0.50 | — | ≤ 0.5 | at the target |" in page
    assert "- A note." in page


def test_a_page_of_ottla_alone_compares_nothing(results):
    alone = Results(results.settings, results.machine, {"ottla": "1"}, results.at)
    alone.add("round-trip", "ottla", {"p50_us": 10.0})
    assert "| `round-trip` | Latency p50 | — | — | ≤ 0.5 | not measured |" in report.page(alone)
    ElementTree.fromstring(report.picture(alone))


def test_the_plot_has_a_bar_and_a_label_for_each_target(results):
    picture = ElementTree.fromstring(report.picture(results))
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    aims = [(cell, metric) for cell in CELLS for metric in cell.metrics if metric.target is not None]
    assert [text for text in texts if text and ": " in text and "." not in text] == [
        f"{cell.name}: {metric.label.lower()}" for cell, metric in aims
    ]


def test_stored_results_give_the_same_page(results, tmp_path):
    results.save(tmp_path / "results.json")
    assert report.page(Results.load(tmp_path / "results.json")) == report.page(results)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([8, 9, 10], "met"), ([9, 9.5, 11], "at the limit"), ([20, 20, 30], "missed ×2.00"), ([], "not measured")],
)
def test_a_limit_is_kept_by_every_run_or_not_at_all(values, verdict):
    assert within(10, values) == verdict


@pytest.mark.parametrize(
    ("values", "verdict"), [([2, 3], "met"), ([1.9, 2.1], "at the limit"), ([1, 1], "missed ×2.00")]
)
def test_a_higher_is_better_cell_has_a_lower_limit(values, verdict):
    assert within(2, values, Better.HIGHER) == verdict


def test_cells_that_were_measured_again_replace_the_old_results(results):
    results.notes.append("A run of reload on kafka broke off: too slow")
    newer = Results(results.settings, results.machine, {"ottla": "2"}, "2026-02-02", ["Another note."])
    newer.add("reload", "ottla", {"reload_s": 5.0, WALL: 90.0})
    results.replace(newer)
    assert results.of("reload", "reload_s", "ottla") == [5.0]
    assert results.of("reload", "reload_s", "kafka") == []
    assert results.of("round-trip", "p50_us", "kafka") == [20.0, 24.0]
    assert results.versions == {"ottla": "2", "kafka": "4"}
    assert results.notes == [
        "A note.",
        "Another note.",
        "Measured again on 2026-02-02, in a run of their own: `reload`.",
    ]
    assert "`reload` 90; 2 minutes in all." in report.page(results)


def test_limits_have_a_table_of_their_own(results):
    reload = [line for line in report.limits(results) if "`reload` | Exec to offsets served" in line]
    assert reload == [
        "| `reload` | Exec to offsets served | 11.0 (10.0–12.0) | 22.0 (20.0–24.0) | ≤ 10 s | at the limit |"
    ]
