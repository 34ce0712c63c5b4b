"""kcat, where it is installed."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess

import pytest

from tests.harness.raw import Connection, fetch

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


@pytest.mark.parametrize(("codec", "number"), [("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)])
def test_kcat_compresses_whatever_its_age(broker, topic, codec, number):
    """An older librdkafka sends uncompressed to a broker that it takes for an old one. (It does so too when a batch
    would not shrink: hence one long line, not many short ones that may come in batches of one.)"""
    kcat("-b", broker.bootstrap, "-P", "-t", topic, "-p", "0", "-z", codec, text="squeeze me " * 100)
    with Connection(broker) as connection:
        records = fetch(connection, topic)["records"]
    (attributes,) = struct.unpack_from(">h", records, 21)
    assert attributes & 7 == number
