"""Workers of Spark: what they do once for all tasks that use them again."""

from __future__ import annotations

import os
import socket

from ottla.spark.workers import answer_at_once


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
