"""The contract of every store. A new store needs a name in `store_url`, and a row in `STORES`."""

from __future__ import annotations

import asyncio

import pytest

from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.store import Check, Conflict, Create, Delete, Node, SessionState, Set, Why, sequence_of
from ottla.local.waiting import until
from tests.cluster.helpers import run


async def zookeeper(address, runtime):
    from ottla.cluster.zookeeper_store import ZooKeeperStore

    return await ZooKeeperStore.open(address, runtime)


STORES = {"embedded": EmbeddedStore.open, "zookeeper": zookeeper}


@pytest.fixture
def with_store(store_url):
    """Runs a test with an open store, and with the means to open further sessions on it."""
    kind, _, where = store_url.partition(":")

    def runner(test):
        async def main(runtime):
            opened = []

            async def another():
                store = await STORES[kind](where, runtime)
                opened.append(store)
                return store

            try:
                await test(await another(), another)
            finally:
                for store in opened:
                    await store.close()

        run(main)

    return runner


def test_a_node_is_read_back_with_its_data_and_version(with_store):
    async def test(store, _):
        await store.commit([Create("/a", b"one")])
        assert await store.read("/a") == Node("/a", b"one", 0)
        await store.commit([Set("/a", b"two")])
        assert await store.read("/a") == Node("/a", b"two", 1)
        assert await store.read("/b") is None

    with_store(test)


def test_children_are_sorted_names_and_none_for_an_unknown_node(with_store):
    async def test(store, _):
        await store.commit([Create("/a"), Create("/a/y"), Create("/a/x"), Create("/a/x/below"), Create("/ab")])
        assert await store.children("/a") == ["x", "y"]
        assert await store.children("/") == ["a", "ab"]
        assert await store.children("/nothing") == []
        assert [node.path for node in await store.children_from("/a", "xx")] == ["/a/y"]

    with_store(test)


def test_a_tree_is_a_node_and_all_below_it(with_store):
    async def test(store, _):
        for path in ("/a", "/a/b", "/a/b/c", "/a-", "/a0", "/a/b-", "/z"):
            await store.commit([Create(path)])
        assert [node.path for node in await store.tree("/a")] == ["/a", "/a/b", "/a/b-", "/a/b/c"]
        assert [node.path for node in await store.tree("/z", "/a0", "/none")] == ["/a0", "/z"]
        assert len(await store.tree("/")) == 8

    with_store(test)


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (Create("/there"), Why.exists),
        (Create("/nothing/below"), Why.missing),
        (Create("/mine/below"), Why.ephemeral_parent),
        (Set("/nothing", b""), Why.missing),
        (Set("/there", b"", 7), Why.version),
        (Check("/nothing", 0), Why.missing),
        (Check("/there", 5), Why.version),
        (Delete("/nothing"), Why.missing),
        (Delete("/there", 3), Why.version),
        (Delete("/full"), Why.not_empty),
    ],
    ids=lambda value: value.name if isinstance(value, Why) else f"{type(value).__name__} {value.path}",
)
def test_a_conflict_names_the_operation_and_nothing_is_committed(with_store, op, why):
    async def test(store, _):
        await store.commit([Create("/there"), Create("/full"), Create("/full/x"), Create("/mine", ephemeral=True)])
        with pytest.raises(Conflict) as caught:
            await store.commit([Create("/new"), Set("/there", b"changed"), op])
        assert (caught.value.index, caught.value.op, caught.value.why) == (2, op, why)
        assert await store.read("/new") is None
        assert await store.read("/there") == Node("/there", b"", 0)

    with_store(test)


def test_operations_of_one_commit_see_those_before_them(with_store):
    async def test(store, _):
        await store.commit(
            [Create("/a"), Create("/a/b"), Set("/a/b", b"x"), Check("/a/b", 1), Delete("/a/b"), Delete("/a")]
        )
        assert await store.read("/a") is None

    with_store(test)


def test_sequential_nodes_are_numbered_without_gaps_and_never_again(with_store):
    async def test(store, _):
        await store.commit([Create("/log")])
        made = []
        for _ in range(3):
            made += await store.commit([Create("/log/change-", sequential=True)])
        assert made == [f"/log/change-{n:010d}" for n in range(3)]
        with pytest.raises(Conflict):
            await store.commit([Create("/log/change-", sequential=True), Check("/nothing", 0)])
        await store.commit([Delete(path) for path in made])
        made = await store.commit([Check("/log", 0), Create("/log/change-", sequential=True)])
        assert made == ["/log", "/log/change-0000000003"]
        assert sequence_of(made[1]) == 3

    with_store(test)


def test_commits_are_visible_to_other_sessions_and_after_all_have_closed(with_store):
    async def test(store, another):
        await store.commit([Create("/a", b"kept")])
        other = await another()
        assert await other.read("/a") == Node("/a", b"kept", 0)
        await store.close()
        await other.close()
        assert await (await another()).read("/a") == Node("/a", b"kept", 0)

    with_store(test)


def test_ephemeral_nodes_are_removed_with_their_session(with_store):
    async def test(store, another):
        other = await another()
        await store.commit([Create("/mine", ephemeral=True), Create("/ours")])
        await other.commit([Create("/theirs", ephemeral=True)])
        assert await other.children("/") == ["mine", "ours", "theirs"]
        await store.close()
        assert await other.children("/") == ["ours", "theirs"]

    with_store(test)


def test_a_watch_fires_for_own_commits_and_for_other_sessions(with_store):
    async def test(store, another):
        other = await another()
        await store.commit([Create("/log")])
        notified: list[str] = []
        unwatch = store.watch("/log", lambda: notified.append("here"))
        other.watch("/log", lambda: notified.append("there"))
        await store.commit([Create("/log/a")])
        await until(lambda: {"here", "there"} <= set(notified))
        notified.clear()
        await store.commit([Delete("/log/a")])
        await until(lambda: {"here", "there"} <= set(notified))
        unwatch()
        notified.clear()
        await store.commit([Set("/log", b"")])
        await until(lambda: "there" in notified)
        assert "here" not in notified

    with_store(test)


def test_a_watch_fires_when_another_sessions_ephemeral_node_is_removed(with_store):
    async def test(store, another):
        other = await another()
        await store.commit([Create("/ids")])
        await other.commit([Create("/ids/2", ephemeral=True)])
        notified = asyncio.Event()
        store.watch("/ids", notified.set)
        await other.close()
        await asyncio.wait_for(notified.wait(), 10)
        assert await store.children("/ids") == []

    with_store(test)


def test_conflicting_writers_all_succeed_one_after_another(with_store):
    async def test(store, another):
        stores = [store, await another(), await another()]
        await store.commit([Create("/counter", b"0")])

        async def count(writer):
            done = 0
            while done < 10:
                node = await writer.read("/counter")
                try:
                    await writer.commit([Set("/counter", str(int(node.data) + 1).encode(), node.version)])
                except Conflict:
                    continue
                done += 1

        await asyncio.gather(*map(count, stores))
        assert await store.read("/counter") == Node("/counter", b"30", 30)

    with_store(test)


def test_a_cancelled_commit_leaves_the_store_usable(with_store):
    async def test(store, _):
        task = asyncio.ensure_future(store.commit([Create("/a")]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.commit([Create("/b")])
        assert "b" in await store.children("/")
        assert store.state is SessionState.connected

    with_store(test)
