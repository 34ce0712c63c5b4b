"""kcat, where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

KCAT = shutil.which("kcat") or shutil.which("kafkacat")

pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def kcat(*arguments: str, text: str = "") -> str:
    assert KCAT is not None
    done = subprocess.run([KCAT, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kcat_lists_writes_reads_and_queries(broker, topic):
    listed = json.loads(kcat("-b", broker.bootstrap, "-L", "-J", "-t", topic))
    assert [each["topic"] for each in listed["topics"]] == [topic]
    kcat("-b", broker.bootstrap, "-P", "-t", topic, "-p", "0", "-K", ":", text="a:1\nb:2\nc:3\n")
    read = kcat("-b", broker.bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-K", ":")
    assert read.splitlines() == ["a:1", "b:2", "c:3"]
    assert "offset 3" in kcat("-b", broker.bootstrap, "-Q", "-t", f"{topic}:0:-1")
