"""Control socket of `ottla dev`: in the data directory, or in /tmp if its path is too long."""

from __future__ import annotations

import asyncio

import pytest

from ottla.errors import Fault
from ottla.local.control import SOCKET, ControlServer, send_command


async def echo(asked):
    return {"ok": True, "said": asked}


def exchange(directory, asked):
    async def test():
        server = ControlServer(directory, echo)
        await server.open()
        try:
            there = (directory / SOCKET).exists()
            return await asyncio.to_thread(send_command, directory, asked), there
        finally:
            await server.close()

    return asyncio.run(test())


@pytest.mark.parametrize("depth", [0, 10])
def test_a_command_is_answered_also_in_a_directory_with_a_long_path(tmp_path_factory, depth):
    directory = tmp_path_factory.mktemp("d").joinpath(*["directory"] * depth)
    directory.mkdir(parents=True, exist_ok=True)
    answer, there = exchange(directory, {"do": "kill", "broker": 2})
    assert answer == {"ok": True, "said": {"do": "kill", "broker": 2}}
    assert there is (depth == 0)
    assert list(directory.iterdir()) == []


def test_without_a_running_cluster_a_command_fails(tmp_path):
    with pytest.raises(Fault, match="no `ottla dev` is running"):
        send_command(tmp_path, {"do": "status"})
    (tmp_path / "control.json").write_text('{"socket": "/nowhere"}')
    with pytest.raises(Fault, match="does not answer"):
        send_command(tmp_path, {"do": "status"})
