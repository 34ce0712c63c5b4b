"""Live view of `ottla dev` in windows of several widths, without a cluster."""

from __future__ import annotations

import pytest

pytest.importorskip("rich")

from rich.console import Console

from ottla.cli.live import BROKER_KEYS, ELIGIBLE_WHY, Column, cell, hide, keys_line, note, table_of
from ottla.local.snapshot import PartitionReplicas


def brokers():
    columns = {name: Column(name) for name in ("address", "pid", "memory", "state")}
    for column, value in zip(columns.values(), ("127.0.0.1:90920", "1234567", "42 MB", "ready"), strict=True):
        column.cells.append(value)
    return columns


@pytest.mark.parametrize(("width", "gone"), [(41, []), (40, ["memory"]), (33, ["memory"]), (32, ["pid", "memory"])])
def test_a_narrow_window_shows_addresses_and_hides_memory_and_pid(width, gone):
    columns = brokers()
    assert hide(columns, ("memory", "pid"), width) == gone
    console = Console(width=width)
    with console.capture() as shown:
        console.print(table_of(columns.values()))
    lines = shown.get().splitlines()
    assert len(lines) == 2
    assert "127.0.0.1:90920 " in lines[1]
    assert lines[1].rstrip().endswith("ready")


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_sentences_and_keys_wrap_at_the_width_of_the_window(width):
    for text in (note(ELIGIBLE_WHY, width), keys_line("broker 1:", BROKER_KEYS, width)):
        lines = text.plain.splitlines()
        assert max(map(len, lines)) < width
        assert all(line.startswith(" ") for line in lines)
    assert " ".join(note(ELIGIBLE_WHY, width).plain.split()) == ELIGIBLE_WHY
    shown = keys_line("broker 1:", BROKER_KEYS, width).plain
    assert all(key.removeprefix("·  ") in shown for key in BROKER_KEYS)


def test_a_replica_in_sync_on_a_dead_broker_has_no_full_dot():
    state = PartitionReplicas(-1, (1, 2, 3), (2, 3))
    shown = [cell(state, broker_id, (1,), {3}).plain for broker_id in (1, 2, 3)]
    assert shown == ["○ may lead", "○ in sync, down", "● in sync"]
