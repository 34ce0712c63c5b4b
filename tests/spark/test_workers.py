"""Workers of Spark: work that is done once for all tasks."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ottla.spark.workers import answer_at_once, keep_memory

FAULTS = """
import resource
from ottla.spark.workers import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        kept = [bytearray(1 << 20) for _ in range(4)]
        del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
keep_memory()
faults()
print(given_back, faults())
"""


def nodelay(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_connection_to_the_jvm_does_not_wait_for_acknowledgements():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as worker:
        assert nodelay(worker) == 0
        answer_at_once()
        assert nodelay(worker) != 0
        worker.sendall(b"x")  # still open, and still its own


def test_files_pipes_and_unix_sockets_stay_as_they_are(tmp_path):
    reading, writing = os.pipe()
    one, other = socket.socketpair()
    try:
        with (tmp_path / "file").open("w") as file:
            answer_at_once()
            file.write("x")
        os.write(writing, b"x")
        one.sendall(b"x")
        assert os.read(reading, 1) == other.recv(1) == b"x"
    finally:
        os.close(reading)
        os.close(writing)
        one.close()
        other.close()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_memory_that_a_task_frees_stays_with_the_worker():
    printed = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    given_back, kept = map(int, printed.split())
    assert kept * 10 < given_back


def test_a_c_library_without_mallopt_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    keep_memory.__wrapped__()
