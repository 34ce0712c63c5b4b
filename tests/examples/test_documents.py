"""The programs in the documents run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Served

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "client.md"


@pytest.mark.parametrize("at", [0, 1])
def test_the_programs_in_the_client_document_run(broker: Served, fresh_name, at):
    program = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)[at]
    program = program.replace("localhost:9092", broker.bootstrap).replace('"orders"', repr(fresh_name()))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if at == 0:
        assert "RecordMetadata(" in done.stdout
        assert "b'two oranges'" in done.stdout
