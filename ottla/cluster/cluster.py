"""The cluster as a broker uses it: an image, and calls that return when the image has what they did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from ottla.cluster import changes as c
from ottla.cluster import config_edits, controller, in_sync, layout, leader_moves, reassignments
from ottla.cluster.controller_loop import ControllerLoop
from ottla.cluster.image import Broker, Image
from ottla.cluster.leases import LEASE_SECONDS
from ottla.cluster.persist import replica_erased
from ottla.cluster.requests import (
    AlterPartitionResult,
    BrokerRegistration,
    ConfigAlteration,
    ConfigResult,
    Decision,
    ElectionKind,
    InSyncProposal,
    PartitionResult,
    PartitionsSpec,
    Reassignment,
    Rules,
    TopicResult,
    TopicSpec,
)
from ottla.cluster.store import Conflict, Create, Op, SessionState, Set, Store, Why, sequence_of
from ottla.cluster.touch import Touch
from ottla.cluster.view import ClusterView, Subscriber
from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.errors import Fault
from ottla.runtime import Runtime

R = TypeVar("R")

DEFAULT_FILE: Final = "store.db"
SESSION_FILE: Final = "zookeeper.session"
SECRET_BYTES: Final = 32
PRODUCER_ID_BLOCK: Final = 1000
PRODUCER_ID_MAX: Final = 2**63 - 1
ATTEMPTS_MAX: Final = 20
ERASED_MAX: Final = 200
"""Deleted topics that are confirmed in one commit."""

OpenStore = Callable[[str, Runtime, str, ZooKeeperOptions | None], Awaitable[Store]]
STORES: Final[dict[str, OpenStore]] = {}
"""Further kinds of store, by the word before the colon: what opens them takes the rest of the name, the runtime, the
broker's data directory and its options."""


class Cluster:
    """Before `open` the image is empty, and nothing else may be asked."""

    def __init__(
        self,
        store_url: str,
        runtime: Runtime,
        *,
        data_dir: str,
        rules: Rules | None = None,
        zookeeper: ZooKeeperOptions | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """`store_url`: embedded:PATH (without a path, a file in `data_dir`), or zookeeper:HOST:PORT[,...][/chroot].
        `lease_seconds`: for how long this process may hang before an embedded store ends its session."""
        self.secret: bytes
        """What brokers of this cluster know and nobody else: they prove themselves to each other with it."""
        self.rules = rules or Rules()
        """What the controller judges by; set anew when the broker's settings change."""
        self.opened = False
        self._store_url = store_url
        self._data_dir = data_dir
        self._zookeeper = zookeeper
        self._lease_seconds = lease_seconds
        self._touch: Touch | None = None
        self._view = ClusterView(runtime)
        self._runtime = runtime
        self._controller = ControllerLoop(self._view, runtime, lambda: self.rules)
        self._broker_id = -1

    async def open(self) -> Cluster:
        """Open the store, found a cluster in it if it is empty, and load the image."""
        runtime = self._runtime
        store = await _open_store(self._store_url, runtime, self._data_dir, self._zookeeper, self._lease_seconds)
        try:
            await _found(store, runtime)
            await _complete(store)
            self.secret = await _secret(store, runtime)
            await self._view.open(store)
        except BaseException:
            await store.close()
            raise
        if self._zookeeper is not None and not self._store_url.startswith("embedded:"):
            self._lease_seconds = self._zookeeper.session_timeout_ms / 1000
        self.opened = True
        return self

    @staticmethod
    async def peek(
        store_url: str, runtime: Runtime, *, data_dir: str, zookeeper: ZooKeeperOptions | None = None
    ) -> tuple[Image, bytes]:
        """The image and the secret of a cluster that is there already, for whoever looks in without being a broker."""
        store = await _open_store(store_url, runtime, data_dir, zookeeper, LEASE_SECONDS)
        try:
            if await store.read(layout.FORMAT) is None:
                raise Fault(f"there is no cluster in {store_url}")
            view = ClusterView(runtime)
            await view.load(store)
            return view.image, await _secret(store, runtime)
        finally:
            await store.close()

    @property
    def image(self) -> Image:
        return self._view.image

    @property
    def cluster_id(self) -> str:
        return self._view.image.cluster_id

    @property
    def registration(self) -> Broker | None:
        """This broker as it registered last; its epoch and `clean_since` belong into the mark of a clean stop."""
        return self._controller.broker

    @property
    def incarnation(self) -> str:
        """By which this process knows its own registrations, whatever their epochs."""
        return self._controller.incarnation

    @property
    def in_touch(self) -> bool:
        """Whether the store can be reached, and holds this broker for alive: nobody has taken its place."""
        return self._touch is not None and self._touch.holds

    def on_expelled(self, tell: Callable[[], None]) -> None:
        """Tell whenever the store has ended this broker's registration, before there is another."""
        self._view.store.on_state(lambda state: tell() if state is SessionState.lost else None)

    def on_replaced(self, tell: Callable[[Fault], None]) -> None:
        """Tell if another process is found to be registered as this broker: then this one must end."""
        self._controller.replaced = tell

    def hurry(self) -> None:
        """A broker seems to be gone: let that be found out soon."""
        self._view.store.hurry()

    @property
    def is_controller(self) -> bool:
        return self._controller.active

    def subscribe(self, tell: Subscriber) -> Callable[[], None]:
        """Tell (image before, image after, change) for every change from now on. Returns what ends it."""
        return self._view.subscribe(tell)

    async def register(self, registration: BrokerRegistration) -> int:
        """Say that this broker is alive; become controller if there is none, and then lead again what this broker led.
        The broker epoch. Fault when a live broker has the same id."""
        self._broker_id = registration.id
        epoch = await self._controller.join(registration)
        path = layout.broker_path(registration.id)
        self._touch = Touch(self._view.store, self._runtime, path, self.incarnation, self._lease_seconds)
        return epoch

    async def create_topics(self, specs: Sequence[TopicSpec], *, validate_only: bool = False) -> list[TopicResult]:
        await self._view.catch_up()  # a broker that has just said it is ready can be given replicas
        ids = [layout.new_id(self._runtime.random.randbytes(16)) for _ in specs]
        return await self._decide(lambda image: controller.create_topics(image, specs, ids, self.rules), validate_only)

    async def delete_topics(self, topics: Sequence[str | bytes]) -> list[TopicResult]:
        """By name, or by id."""
        return await self._decide(lambda image: controller.delete_topics(image, topics))

    async def create_partitions(
        self, specs: Sequence[PartitionsSpec], *, validate_only: bool = False
    ) -> list[TopicResult]:
        return await self._decide(lambda image: controller.create_partitions(image, specs, self.rules), validate_only)

    async def alter_topic_configs(
        self, alterations: Sequence[ConfigAlteration], *, validate_only: bool = False
    ) -> list[ConfigResult]:
        return await self._decide(
            lambda image: config_edits.alter_topic_configs(image, alterations, self.rules), validate_only
        )

    async def alter_broker_configs(
        self, alterations: Sequence[ConfigAlteration], *, validate_only: bool = False
    ) -> list[ConfigResult]:
        return await self._decide(
            lambda image: config_edits.alter_broker_configs(image, alterations, self.rules), validate_only
        )

    async def alter_group_configs(
        self, alterations: Sequence[ConfigAlteration], *, validate_only: bool = False
    ) -> list[ConfigResult]:
        return await self._decide(
            lambda image: config_edits.alter_group_configs(image, alterations, self.rules), validate_only
        )

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[InSyncProposal]
    ) -> list[AlterPartitionResult]:
        """A leader's proposals for the in-sync sets of its partitions."""
        return await self._decide(
            lambda image: in_sync.alter_partitions(image, broker_id, broker_epoch, proposals, self.rules)
        )

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Sequence[tuple[str, int]] | None
    ) -> list[PartitionResult]:
        """Of these partitions (topic, number), or of all that need it."""
        return await self._decide(lambda image: leader_moves.elect_leaders(image, kind, partitions, self.rules))

    async def alter_reassignments(
        self, wanted: Sequence[Reassignment], *, factor_may_change: bool = True
    ) -> list[PartitionResult]:
        return await self._decide(
            lambda image: reassignments.alter_reassignments(
                image, wanted, self.rules, factor_may_change=factor_may_change
            )
        )

    async def replicas_erased(self, topic_ids: Iterable[bytes]) -> None:
        """This broker has removed its files of these deleted topics (`image.tombstones` names them). Every broker says
        so for itself: nobody else has a say in it, and the controller need not be there."""
        ids = sorted(set(topic_ids))
        for start in range(0, len(ids), ERASED_MAX):
            await self._replicas_erased(ids[start : start + ERASED_MAX])

    async def _replicas_erased(self, topic_ids: Sequence[bytes]) -> None:
        for _ in range(ATTEMPTS_MAX):
            changes: list[c.ReplicaErased] = []
            ops: list[Op] = []
            for topic_id in topic_ids:
                node = await self._view.store.read(layout.tombstone_path(topic_id))
                if node is None or self._broker_id not in (tombstone := layout.tombstone_of(node.data)).replicas:
                    continue
                changes.append(c.ReplicaErased(topic_id, self._broker_id))
                ops.append(replica_erased(changes[-1], tombstone, node.version))
            if not changes:
                return
            try:
                paths = await self._view.store.commit(
                    [*ops, Create(layout.CHANGE, c.encoded((*changes,)), sequential=True)]
                )
            except Conflict:
                continue  # another broker said the same of one of them
            if not self._view.committed(sequence_of(paths[-1]), (*changes,)):
                await self._view.catch_up()
            return
        raise Fault(f"deleted topics not confirmed in {ATTEMPTS_MAX} attempts: the store is too busy")

    async def drain(self) -> None:
        """Say that this broker is about to stop. The controller then moves its leaders and takes it out of the in-sync
        sets, as far as others can take over; `image` shows how far that is. May be said by any registered broker."""
        await self._controller.drain()

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids that nobody else will ever get."""
        path = layout.PRODUCER_IDS
        for _ in range(ATTEMPTS_MAX):
            node = await self._view.store.read(path)
            start = 0 if node is None else layout.producer_ids_of(node.data).stop
            if start > PRODUCER_ID_MAX - PRODUCER_ID_BLOCK:
                raise Fault("all producer ids are used up")
            block = range(start, start + PRODUCER_ID_BLOCK)
            data = layout.producer_ids_data(self._broker_id, block)
            op: Op = Create(path, data) if node is None else Set(path, data, node.version)
            try:
                await self._view.store.commit([op])
            except Conflict:
                continue  # another broker took that block
            return block
        raise Fault(f"no producer ids in {ATTEMPTS_MAX} attempts: the store is too busy")

    async def catch_up(self) -> None:
        """Return when everything that was committed before the call, by whomever, is in the image."""
        await self._view.catch_up()

    async def close(self) -> None:
        """Leave: the registration goes with the session."""
        if self._touch is not None:
            await self._touch.end()
        await self._controller.close()
        await self._view.close()
        if self.opened:
            await self._view.store.close()

    async def _decide(self, decide: Callable[[Image], Decision[R]], validate_only: bool = False) -> list[R]:
        if validate_only:
            return decide(self.image).results
        return await self._controller.decide(decide)


async def _open_store(
    url: str, runtime: Runtime, data_dir: str, zookeeper: ZooKeeperOptions | None, lease_seconds: float
) -> Store:
    kind, _, where = url.partition(":")
    if kind == "embedded":
        from ottla.cluster.embedded import EmbeddedStore

        path = where or f"{data_dir}/{DEFAULT_FILE}"
        return await EmbeddedStore.open(path, runtime, lease_seconds=lease_seconds)
    if kind == "zookeeper":
        try:
            from ottla.cluster.zookeeper_store import ZooKeeperStore
        except ModuleNotFoundError as missing:
            raise Fault(f"{missing.name} is not installed: pip install 'ottla[zookeeper]'") from missing
        return await ZooKeeperStore.open(where, runtime, zookeeper, session_file=f"{data_dir}/{SESSION_FILE}")
    if kind in STORES:
        return await STORES[kind](where, runtime, data_dir, zookeeper)
    raise Fault(
        f"there is no store of the kind {url!r}: use embedded:PATH or zookeeper:HOST:PORT[,HOST:PORT...][/chroot]"
    )


async def _found(store: Store, runtime: Runtime) -> None:
    """Lay out an empty store and give the cluster its id; refuse one that a newer Ottla has laid out."""
    while (format_node := await store.read(layout.FORMAT)) is None:
        cluster_id = layout.id_text(layout.new_id(runtime.random.randbytes(16)))
        try:
            await store.commit(layout.first_nodes(cluster_id))
        except Conflict as conflict:
            if await store.read(layout.FORMAT) is None:
                raise Fault(f"the store is not empty and not ours: {conflict}") from conflict
    version = layout.decode(format_node.data)["version"]
    if version > layout.FORMAT_VERSION:
        raise Fault(
            f"the cluster's metadata was written by a newer Ottla (layout {version}, this one knows up to "
            f"{layout.FORMAT_VERSION}); use that version"
        )


async def _complete(store: Store) -> None:
    """Make what earlier releases did not lay out."""
    for path in layout.ADDED_PATHS:
        if await store.read(path) is None:
            try:
                await store.commit([Create(path)])
            except Conflict as conflict:
                if conflict.why is not Why.exists:  # another broker made it
                    raise Fault(f"the store takes no node {path}: {conflict}") from conflict


async def _secret(store: Store, runtime: Runtime) -> bytes:
    """The cluster's secret, made by whoever looks for it first: older releases had none."""
    while (node := await store.read(layout.SECRET)) is None:
        try:
            await store.commit([Create(layout.SECRET, layout.secret_data(runtime.entropy(SECRET_BYTES)))])
        except Conflict as conflict:
            if conflict.why is not Why.exists:
                raise Fault(f"the store takes no secret of the cluster: {conflict}") from conflict
    try:
        return layout.secret_of(node.data)
    except (KeyError, TypeError, ValueError) as failure:
        raise Fault(f"the store's node {layout.SECRET} cannot be read: {failure!r}") from failure
