"""The simulated store fulfils the contract of every store, and its sessions expire."""

from __future__ import annotations

import asyncio

import pytest

from ottla.cluster.store import Create, SessionLost, SessionState
from ottla.errors import Fault
from ottla.sim.store import STORE, SimStore
from ottla.sim.world import World
from tests.cluster import test_store as contract

for _name in [name for name in vars(contract) if name.startswith("test_")]:
    globals()[_name] = getattr(contract, _name)


@pytest.fixture
def world():
    return World(1)


@pytest.fixture
def with_store(world):
    """Runs a test of the contract on virtual time."""

    def runner(test):
        runtime = world.process("broker")

        async def another():
            return await SimStore.open(world.store, runtime)

        async def main():
            await test(await another(), another)

        world.run_in(runtime, main())
        assert not world.failures

    return runner


def opened(world, name, **options):
    runtime = world.process(name)
    return runtime, world.run_in(runtime, SimStore.open(world.store, runtime, **options))


def states_of(store):
    reported: list[SessionState] = []
    store.on_state(reported.append)
    return reported


def test_a_disconnected_session_is_suspended_and_continues_after_reconnecting(world):
    runtime, store = opened(world, "one")
    reported = states_of(store)
    world.run_in(runtime, store.commit([Create("/mine", ephemeral=True)]))
    world.network.cut("one", STORE)
    assert world.run(lambda: store.state is SessionState.suspended, 6)
    with pytest.raises(Fault, match="out of reach"):
        world.run_in(runtime, store.read("/mine"))
    world.network.heal("one", STORE)
    assert world.run(lambda: store.state is SessionState.connected, 2)
    assert reported == [SessionState.suspended, SessionState.connected]
    assert world.run_in(runtime, store.read("/mine")) is not None


def test_a_session_that_is_cut_off_for_longer_than_its_timeout_is_lost_and_another_begins(world):
    runtime, store = opened(world, "one")
    reported = states_of(store)
    world.run_in(runtime, store.commit([Create("/mine", ephemeral=True)]))
    world.network.cut(STORE, "one")
    world.run(lambda: False, 15)
    assert reported == [SessionState.suspended], "who hears nothing does not know whether its session is over"
    world.network.heal(STORE, "one")
    assert world.run(lambda: store.state is SessionState.connected, 5)
    assert reported == [SessionState.suspended, SessionState.lost, SessionState.connected]
    assert world.run_in(runtime, store.read("/mine")) is None


def test_a_paused_process_loses_its_session_and_learns_of_it_when_it_wakes(world):
    runtime, store = opened(world, "one")
    _, watching = opened(world, "two")
    world.run_in(runtime, store.commit([Create("/mine", ephemeral=True)]))
    seen: list[bool] = []
    watching.watch("/mine", lambda: seen.append(True))
    runtime.loop.pause()
    assert world.run(lambda: bool(seen), 8)
    assert store.state is SessionState.connected
    runtime.loop.resume()
    reported = states_of(store)
    assert world.run(lambda: SessionState.lost in reported, 5)


def test_a_commit_under_way_when_the_store_goes_is_in_doubt(world):
    runtime, store = opened(world, "one")

    async def commit():
        task = asyncio.ensure_future(store.commit([Create("/a")]))
        await asyncio.sleep(0)
        world.store.go_away()
        with pytest.raises(Fault) as caught:
            await task
        assert not isinstance(caught.value, SessionLost)

    world.run_in(runtime, commit())


def test_an_outage_of_the_store_costs_no_session(world):
    runtime, store = opened(world, "one")
    world.run_in(runtime, store.commit([Create("/mine", ephemeral=True)]))
    reported = states_of(store)
    world.store.go_away()
    world.run(lambda: False, 60)
    world.store.come_back()
    assert world.run(lambda: store.state is SessionState.connected, 6)
    assert reported == [SessionState.suspended, SessionState.connected]
    assert world.run_in(runtime, store.read("/mine")) is not None


def test_a_process_that_comes_back_ends_the_session_it_had(world):
    first, store = opened(world, "one", session_file="session")
    world.run_in(first, store.commit([Create("/mine", ephemeral=True)]))
    world.kill(first)
    second, store = opened(world, "one", session_file="session")
    assert world.run_in(second, store.read("/mine")) is None


@pytest.mark.parametrize("prompt", [True, False])
def test_the_session_of_a_dead_process_ends_at_once_or_at_its_timeout(world, prompt):
    world.store.prompt = prompt
    runtime, store = opened(world, "one")
    other, looking = opened(world, "two")
    world.run_in(runtime, store.commit([Create("/mine", ephemeral=True)]))
    world.kill(runtime)
    assert (world.run_in(other, looking.read("/mine")) is None) is prompt
    world.run(lambda: False, 7)
    assert world.run_in(other, looking.read("/mine")) is None
