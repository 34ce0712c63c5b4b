"""The first lines of a broker's log."""

from __future__ import annotations

import logging
from pathlib import Path

from tests.harness.in_process import run, start_broker, stop_broker


def test_paths_are_logged_as_absolute(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)

    async def test():
        await stop_broker(await start_broker(Path("here"), 1))

    run(test)
    (said,) = [each.getMessage() for each in caplog.records if "is starting" in each.getMessage()]
    assert said.endswith(f"data directory {tmp_path}/here/data-1, store embedded:{tmp_path}/here/store.db")
    assert any("0 topics with 0 partitions" in each.getMessage() for each in caplog.records)
