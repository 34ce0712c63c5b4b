"""The ZooKeeper store: sessions that expire, servers that die, a loop that hangs, ACLs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid

import pytest

from ottla.cluster.cluster import SESSION_FILE, Cluster
from ottla.cluster.requests import TopicSpec
from ottla.cluster.store import COMMIT_BYTES_MAX, Create, Node, SessionLost, SessionState, Set
from ottla.cluster.zookeeper_options import Credentials, ZooKeeperOptions
from ottla.errors import Fault
from ottla.local.waiting import until
from tests.cluster.helpers import cluster_on, registration, run, states
from tests.harness.zookeeper import ensemble, zookeeper_jars

pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'ottla[zookeeper]'")

from kazoo.client import KazooClient

from ottla.cluster.zookeeper_store import ZooKeeperStore

SHORT = ZooKeeperOptions(session_timeout_ms=2_000, connection_timeout_ms=10_000)


@pytest.fixture
def address(zookeeper_url):
    return zookeeper_url.removeprefix("zookeeper:")


@pytest.fixture
def own_zookeeper(tmp_path):
    """A server that this test may kill."""
    running = ensemble(tmp_path / "zookeeper")
    yield running
    running.stop()


@pytest.fixture
def three_zookeepers(tmp_path):
    running = ensemble(tmp_path / "zookeeper", 3)
    yield running
    running.stop()


def expire(store):
    """End a store's session behind its back, as ZooKeeper does with one that it does not hear of."""
    key = store._session._key
    thief = KazooClient(store._session._address.hosts, client_id=(key.id, key.password))
    thief.start()
    thief.stop()
    thief.close()


async def data_of(store, path):
    node = await store.read(path)
    assert node is not None
    return node.data


def states_of(store):
    reported: list[SessionState] = []
    store.on_state(reported.append)
    return reported


async def succeeding(act):
    """What it gives once it no longer fails with a Fault."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await act()
            except Fault:
                await asyncio.sleep(0.02)


def test_after_an_expired_session_another_begins(address):
    async def test(runtime):
        store = await ZooKeeperStore.open(address, runtime, SHORT)
        reported = states_of(store)
        await store.commit([Create("/mine", ephemeral=True), Create("/ours")])
        news = asyncio.Event()
        store.watch("/", news.set)
        await asyncio.to_thread(expire, store)
        await until(lambda: reported[-2:] == [SessionState.lost, SessionState.connected])
        assert reported == [SessionState.suspended, SessionState.lost, SessionState.connected]
        assert await store.children("/") == ["ours"]
        await asyncio.wait_for(news.wait(), 10)
        await store.commit([Create("/mine", ephemeral=True)])
        news.clear()
        await store.commit([Create("/more")])
        await asyncio.wait_for(news.wait(), 10)
        await store.close()

    run(test)


def test_a_broker_whose_session_expired_registers_again_under_a_new_epoch(zookeeper_url):
    async def test(runtime):
        async with cluster_on(zookeeper_url, runtime, zookeeper=SHORT) as cluster:
            await cluster.create_topics([TopicSpec("t", 1, 1)])
            for times in (1, 2, 3):
                epoch = cluster.image.brokers[1].epoch
                await asyncio.to_thread(expire, cluster._view.store)
                led_again = [f"1@{times} 1/1 #{times}"]
                await until(lambda led_again=led_again: states(cluster.image, "t") == led_again)  # type: ignore[misc]
                assert cluster.image.brokers[1].epoch > epoch
                await until(lambda: cluster.is_controller)
            (made,) = await cluster.create_topics([TopicSpec("u", 1, 1)])
            assert made.partitions == 1

    run(test)


def test_a_broker_whose_session_expired_before_it_registered_registers_in_the_next(zookeeper_url):
    async def test(runtime):
        async with cluster_on(zookeeper_url, runtime, None, zookeeper=SHORT) as cluster:
            lost = asyncio.Event()
            cluster._view.store.on_state(lambda state: lost.set() if state is SessionState.lost else None)
            await asyncio.to_thread(expire, cluster._view.store)
            await asyncio.wait_for(lost.wait(), 10)
            assert cluster._view.store.state is SessionState.lost
            await cluster.register(registration(1))
            assert cluster.is_controller

    run(test)


def test_while_zookeeper_is_unavailable_requests_fail_and_the_session_survives(own_zookeeper):
    async def test(runtime):
        store = await ZooKeeperStore.open(own_zookeeper.connect, runtime, SHORT)
        await store.commit([Create("/mine", b"1", ephemeral=True)])
        reported = states_of(store)
        news = asyncio.Event()
        store.watch("/mine", news.set)
        underway = asyncio.ensure_future(store.read("/mine"))
        own_zookeeper.servers[0].kill()
        await until(lambda: store.state is SessionState.suspended)
        await asyncio.wait([underway])
        if underway.exception() is not None:
            assert isinstance(underway.exception(), Fault)
        for refused in (store.commit([Create("/x")]), store.read("/mine"), store.children("/"), store.tree("/mine")):
            with pytest.raises(Fault, match="out of reach: try again when it is back") as caught:
                await refused
            assert not isinstance(caught.value, SessionLost)
        await asyncio.sleep(2 * SHORT.session_timeout_ms / 1000)  # the ensemble is away, so nobody ends the session
        await asyncio.to_thread(own_zookeeper.start)
        await until(lambda: store.state is SessionState.connected, timeout_s=20)
        assert reported == [SessionState.suspended, SessionState.connected]
        await asyncio.wait_for(news.wait(), 10)
        assert await store.read("/mine") == Node("/mine", b"1", 0)
        assert await store.read("/x") is None
        await store.commit([Set("/mine", b"2", 0)])
        await store.close()

    run(test)


def test_a_commit_without_an_answer_is_a_fault_with_unknown_outcome(own_zookeeper):
    async def test(runtime):
        store = await ZooKeeperStore.open(own_zookeeper.connect, runtime, SHORT)
        await store.commit([Create("/counter", b"0")])
        pending = [asyncio.ensure_future(store.commit([Set("/counter", b"%d" % n)])) for n in range(2000)]
        await until(lambda: pending[0].done())
        own_zookeeper.servers[0].kill()
        await asyncio.wait(pending)
        done = [task for task in pending if task.exception() is None]
        doubtful = [task.exception() for task in pending if task.exception() is not None]
        assert done
        assert doubtful
        assert all(isinstance(each, Fault) and not isinstance(each, SessionLost) for each in doubtful)
        assert any("it is not known whether this commit happened" in str(each) for each in doubtful)
        await asyncio.to_thread(own_zookeeper.start)
        node = await succeeding(lambda: store.read("/counter"))
        assert len(done) <= node.version <= len(pending)
        await store.close()

    run(test)


def test_kill_9_of_the_ensembles_leader_keeps_the_session(three_zookeepers, record_property):
    async def test(runtime):
        store = await ZooKeeperStore.open(three_zookeepers.connect, runtime, ZooKeeperOptions(6_000, 10_000))
        reported = states_of(store)
        await store.commit([Create("/mine", b"0", ephemeral=True)])
        key = store._session._key
        leader = three_zookeepers.leader
        leader.kill()
        begin = time.perf_counter()
        await asyncio.sleep(0.05)  # a commit at this very moment may be answered by one that does not know yet
        await succeeding(lambda: store.commit([Set("/mine", b"1")]))
        seconds = time.perf_counter() - begin
        record_property("seconds_to_first_commit", round(seconds, 2))
        assert seconds < 6
        assert SessionState.lost not in reported
        assert store._session._key == key
        assert await data_of(store, "/mine") == b"1"
        await asyncio.to_thread(three_zookeepers.start)
        assert three_zookeepers.leader is not leader
        await store.close()

    run(test)


def test_a_read_sees_what_was_committed_through_another_server(three_zookeepers):
    """At once through a follower; through the leader, where sync is no barrier, a moment later at the latest."""

    async def test(runtime):
        servers = three_zookeepers.servers
        stores = [await ZooKeeperStore.open(f"127.0.0.1:{server.port}", runtime) for server in servers]
        await stores[0].commit([Create("/n", b"0")])
        for n in range(90):
            reader = (n + 1) % 3
            await stores[n % 3].commit([Set("/n", b"%d" % n)])
            if servers[reader].mode() == "follower":
                assert await data_of(stores[reader], "/n") == b"%d" % n
            else:
                async with asyncio.timeout(5):
                    while await data_of(stores[reader], "/n") != b"%d" % n:
                        pass
        for store in stores:
            await store.close()

    run(test)


def test_reads_after_a_reconnect_show_the_outcome_of_unanswered_commits(three_zookeepers):
    async def test(runtime):
        store = await ZooKeeperStore.open(three_zookeepers.connect, runtime, ZooKeeperOptions(6_000, 10_000))
        await store.commit([Create("/counter")])
        pending = [asyncio.ensure_future(store.commit([Set("/counter", b"")])) for _ in range(500)]
        await until(lambda: pending[0].done())
        three_zookeepers.leader.kill()
        await asyncio.wait(pending)
        done = [task for task in pending if task.exception() is None]
        settled = (await succeeding(lambda: store.read("/counter"))).version
        assert len(done) <= settled <= len(pending)
        await asyncio.to_thread(three_zookeepers.start)
        for _ in range(20):  # nothing of it comes in late
            assert (await succeeding(lambda: store.read("/counter"))).version == settled
        await store.close()

    run(test)


@pytest.mark.parametrize("hang_seconds", [0.3, 10])
def test_a_session_ends_when_the_loop_hangs_for_longer_than_its_timeout(address, hang_seconds, caplog):
    async def test(runtime):
        store = await ZooKeeperStore.open(address, runtime, ZooKeeperOptions(1_000, 10_000))
        reported = states_of(store)
        await store.commit([Create("/mine", ephemeral=True)])
        servers, _, chroot = address.partition("/")
        observer = KazooClient(servers)
        observer.start()
        begin = time.perf_counter()
        # The loop hangs here, while kazoo's threads go on and ping.
        while observer.exists(f"/{chroot}/mine") and time.perf_counter() - begin < hang_seconds:
            time.sleep(0.02)  # noqa: ASYNC251 - that is the point
        hung = time.perf_counter() - begin
        observer.stop()
        observer.close()
        if hang_seconds < 1:
            assert await store.children("/") == ["mine"]
            assert reported == []
        else:
            assert 0.9 < hung < 3
            assert "the broker has hung for more than 1 s" in caplog.text
            await until(lambda: reported == [SessionState.lost, SessionState.connected])
            await store.commit([Create("/mine", ephemeral=True)])
        await store.close()

    run(test)


def test_another_session_begins_after_the_loop_hung_until_the_session_expired(address):
    """The watchdog ends what has ended already, which kazoo does not tell of."""

    async def test(runtime):
        store = await ZooKeeperStore.open(address, runtime, SHORT)
        session = store._session
        client, post = session._client, session.post
        reported = states_of(store)

        def post_and_hang(act, *args):
            post(act, *args)
            if len(args) == 2 and args[0] is client and args[1].state is SessionState.lost and not args[1].over:
                # In kazoo's thread: until this returns it does not connect again.
                threading.Thread(target=session._watchdog._on_hang).start()
                assert client._kazoo._stopped.wait(10)

        vars(session)["post"] = post_and_hang
        expire(store)
        await until(lambda: SessionState.lost in reported)
        await until(lambda: store.state is SessionState.connected)
        await store.commit([Create(f"/{uuid.uuid4()}")])
        await store.close()

    run(test)


def test_a_killed_broker_restarts_without_waiting_for_its_old_session(zookeeper_url, tmp_path):
    long = ZooKeeperOptions(session_timeout_ms=30_000)

    async def test(runtime):
        killed, other = tmp_path / "killed", tmp_path / "other"
        killed.mkdir()
        other.mkdir()
        first = await Cluster(zookeeper_url, runtime, data_dir=str(killed), zookeeper=long).open()
        epoch = await first.register(registration(1))
        kept = (killed / SESSION_FILE).read_bytes()
        outsider = await Cluster(zookeeper_url, runtime, data_dir=str(other), zookeeper=long).open()
        with pytest.raises(Fault, match="broker 1 is already running"):
            await outsider.register(registration(1))
        await outsider.close()
        # What a kill -9 leaves: the session, and its key in the data directory.
        assert first._session_lease is not None
        await first._session_lease.end()
        await first._controller.close()
        await first._view.close()
        begin = time.perf_counter()
        second = await Cluster(zookeeper_url, runtime, data_dir=str(killed), zookeeper=long).open()
        assert await second.register(registration(1)) > epoch
        assert time.perf_counter() - begin < 20  # its old session would last 30 s
        assert (killed / SESSION_FILE).read_bytes() != kept
        await first._view.store.close()
        await second.close()
        assert not (killed / SESSION_FILE).exists()

    run(test)


def test_a_broker_stopped_while_zookeeper_was_unavailable_restarts_without_waiting(own_zookeeper, tmp_path):
    long = ZooKeeperOptions(session_timeout_ms=30_000)
    url = f"zookeeper:{own_zookeeper.connect}"

    async def test(runtime):
        first = await Cluster(url, runtime, data_dir=str(tmp_path), zookeeper=long).open()
        epoch = await first.register(registration(1))
        own_zookeeper.servers[0].kill()
        await until(lambda: first._view.store.state is SessionState.suspended)
        await first.close()
        await asyncio.to_thread(own_zookeeper.start)
        second = await Cluster(url, runtime, data_dir=str(tmp_path), zookeeper=long).open()
        assert await second.register(registration(1)) > epoch
        await second.close()
        assert not (tmp_path / SESSION_FILE).exists()

    run(test)


def test_a_missing_zookeeper_is_reported_within_the_connection_timeout():
    async def test(runtime):
        begin = time.perf_counter()
        with pytest.raises(
            Fault, match=r"no ZooKeeper answers at 127\.0\.0\.1:1 within 0.5 s .*refused.*is it running"
        ):
            await ZooKeeperStore.open("127.0.0.1:1/x", runtime, ZooKeeperOptions(1_000, 500))
        assert time.perf_counter() - begin < 20  # its old session would last 30 s

    run(test)


def test_a_commit_that_is_too_large_for_zookeeper_is_refused_and_the_session_lives(address):
    async def test(runtime):
        store = await ZooKeeperStore.open(address, runtime)
        reported = states_of(store)
        with pytest.raises(Fault, match="more than ZooKeeper takes"):
            await store.commit([Create("/big", b"x" * COMMIT_BYTES_MAX)])
        many = [Create(f"/n{n}", b"x" * 1800) for n in range(500)]  # nearly as much as there may be
        await store.commit(many)
        assert len(await store.tree("/")) == 501
        assert reported == []
        await store.close()

    run(test)


def test_with_acls_only_brokers_write_nodes_and_read_secret_ones(shared_zookeeper, caplog):
    address = f"{shared_zookeeper.connect}/{uuid.uuid4().hex[:12]}"
    caplog.set_level(logging.DEBUG)
    ours = ZooKeeperOptions(credentials=Credentials("digest", "ottla", "s3cret-word"), set_acl=True)
    theirs = ZooKeeperOptions(credentials=Credentials("digest", "ottla", "guessed"))

    async def test(runtime):
        store = await ZooKeeperStore.open(address, runtime, ours)
        await store.commit([Create("/brokers", b"1"), Create("/ottla"), Create("/ottla/key", b"k")])
        outsider = await ZooKeeperStore.open(address, runtime, theirs)
        assert await outsider.read("/brokers") == Node("/brokers", b"1", 0)
        for forbidden in (
            outsider.read("/ottla/key"),
            outsider.commit([Set("/brokers", b"2")]),
            outsider.commit([Create("/brokers/ids")]),
            outsider.commit([Create("/new")]),
        ):
            with pytest.raises(Fault, match=r"denies access .* check zookeeper.auth"):
                await forbidden
        second = await ZooKeeperStore.open(address, runtime, ours)
        await second.commit([Set("/brokers", b"2", 0), Set("/ottla/key", b"l")])
        assert await data_of(store, "/ottla/key") == b"l"
        for each in (store, outsider, second):
            await each.close()

    run(test)
    assert "s3cret-word" not in caplog.text
    assert "s3cret-word" not in repr(ours)


JAAS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_ottla="s3cret-word";
};
"""


def test_authentication_with_sasl(tmp_path, caplog):
    pytest.importorskip("puresasl", reason="pure-sasl is not installed: pip install 'ottla[zookeeper]'")
    zookeeper_jars()
    caplog.set_level(logging.DEBUG)
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(JAAS)
    running = ensemble(
        tmp_path / "zookeeper",
        config={"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"},
        java_options=[f"-Djava.security.auth.login.config={jaas}"],
    )

    async def test(runtime):
        right = ZooKeeperOptions(credentials=Credentials("sasl", "ottla", "s3cret-word"), set_acl=True)
        store = await ZooKeeperStore.open(f"{running.connect}/guarded", runtime, right)
        await store.commit([Create("/ottla", b"x")])
        assert await store.read("/ottla") == Node("/ottla", b"x", 0)
        anybody = await ZooKeeperStore.open(running.connect, runtime)
        with pytest.raises(Fault, match=r"check zookeeper.auth"):
            await anybody.read("/guarded/ottla")
        wrong = ZooKeeperOptions(credentials=Credentials("sasl", "ottla", "guessed"))
        with pytest.raises(Fault, match=r"refused the authentication: check zookeeper\.auth"):
            await ZooKeeperStore.open(running.connect, runtime, wrong)
        await store.close()
        await anybody.close()

    try:
        run(test)
    finally:
        running.stop()
    assert "s3cret-word" not in caplog.text


def test_no_change_is_missed_between_two_watches(address):
    """Every change comes from another session, right after the one before it was told."""

    async def test(runtime):
        writer = await ZooKeeperStore.open(address, runtime)
        reader = await ZooKeeperStore.open(address, runtime)
        await writer.commit([Create("/log")])
        reported = asyncio.Event()
        reader.watch("/log", reported.set)
        await asyncio.wait_for(reported.wait(), 10)  # the watch is set
        for n in range(300):
            reported.clear()
            await writer.commit([Create("/log/change-", sequential=True) if n % 3 else Set("/log", b"%d" % n)])
            await asyncio.wait_for(reported.wait(), 10)
        await reader.close()
        await writer.close()

    run(test)


def test_the_session_timeout_is_the_one_that_zookeeper_agreed_to(tmp_path, caplog):
    running = ensemble(tmp_path / "zookeeper", config={"maxSessionTimeout": "4000"})

    async def test(runtime):
        options = ZooKeeperOptions(session_timeout_ms=20_000, connection_timeout_ms=10_000)
        url = f"zookeeper:{running.connect}"
        cluster = await Cluster(url, runtime, data_dir=str(tmp_path), zookeeper=options).open()
        await cluster.register(registration(1))
        assert cluster._session_lease is not None
        assert cluster._session_lease._store.session_seconds == 4.0
        assert caplog.text.count("keeps a session for 4 s, not for 20 s") == 1
        # Nor has its keeper more patience: kazoo's threads would ping for a loop that hangs.
        begin = time.perf_counter()
        while "the broker has hung for more than 4 s" not in caplog.text and time.perf_counter() - begin < 15:
            time.sleep(0.05)  # noqa: ASYNC251 - that is the point
        assert "the broker has hung for more than 4 s" in caplog.text
        await cluster.close()

    try:
        run(test)
    finally:
        running.stop()
