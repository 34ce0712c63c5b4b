"""Virtual time: asyncio without waiting; processes that are paused and killed."""

from __future__ import annotations

import asyncio
import gc

import pytest

from ottla.sim.loop import Livelock
from ottla.sim.world import Unfinished, World


@pytest.fixture
def world():
    return World(1)


def test_sleeping_takes_virtual_time_only(world):
    process = world.process("p")

    async def sleep():
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time() - began

    assert world.run_in(process, sleep(), seconds=100_000) == 86_400


def test_timers_fire_in_order_and_timeouts_end_waiting(world):
    process = world.process("p")
    seen = []

    async def work():
        async with asyncio.TaskGroup() as group:
            for delay in (3, 1, 2):
                group.create_task(note(delay))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    async def note(delay):
        await asyncio.sleep(delay)
        seen.append(delay)

    assert world.run_in(process, work()) == 8
    assert seen == [1, 2, 3]


def test_a_paused_process_runs_nothing_and_its_timers_fire_late(world):
    process = world.process("p")
    seen = []
    process.loop.call_later(1, lambda: seen.append(process.now()))
    process.loop.pause()
    world.run(lambda: False, 10)
    assert seen == []
    process.loop.resume()
    world.run(lambda: False, 1)
    assert seen == [10]


def test_a_dead_process_never_runs_again_and_its_last_writes_reach_no_disk(world):
    process = world.process("p")
    process.disk.mkdir("d")
    seen = []

    async def work():
        try:
            await asyncio.sleep(5)
            seen.append("went on")
        finally:
            seen.append("was closed")
            process.disk.write_atomic("d/f", b"written by the dead")

    process.loop.call_soon(lambda: process.spawn(work(), name="work"))
    world.run(lambda: False, 1)
    world.kill(process)
    world.run(lambda: False, 10)
    assert seen == ["was closed"]
    assert not process.disk.exists("d/f")
    assert world.failures == []


def test_uncaught_exceptions_are_failures_of_the_run(world):
    process = world.process("p")

    def fall():
        raise ValueError("nobody expects this")

    process.loop.call_soon(fall)
    world.run(lambda: False, 1)
    assert len(world.failures) == 1
    assert "nobody expects this" in world.failures[0]


def test_a_livelock_is_detected(world):
    process = world.process("p")

    def again():
        process.loop.call_soon(again)

    process.loop.call_soon(again)
    with pytest.raises(Livelock, match="p goes round in circles"):
        world.run(lambda: False, 1)


def test_work_that_does_not_end_times_out(world):
    with pytest.raises(Unfinished):
        world.run_in(world.process("p"), asyncio.sleep(100), seconds=10)


def test_offloaded_work_takes_time_and_its_failures_come_back(world):
    process = world.process("p")

    async def work():
        began = process.now()
        assert await process.offload(lambda: 7) == 7
        assert process.now() > began
        with pytest.raises(ZeroDivisionError):
            await process.offload(lambda: 1 // 0)

    world.run_in(process, work())


def test_a_killed_coroutine_that_awaits_in_finally_is_closed(world, monkeypatch):
    process = world.process("p")
    complaints: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda reported: complaints.append(str(reported.exc_value)))
    left = []

    async def outer():
        await inner(asyncio.get_running_loop().create_future())

    async def inner(never):
        try:
            await never
        finally:
            await leave(never)

    async def leave(never):
        try:
            await never
        finally:
            await never
            left.append("never")

    process.loop.call_soon(lambda: process.spawn(outer(), name="outer"))
    world.run(lambda: False, 1)
    world.kill(process)
    gc.collect()
    assert (complaints, left) == ([], [])
