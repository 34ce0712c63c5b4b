"""Cluster metadata as a broker uses it: the image, and requests that return when the image has their changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from ottla.cluster import alter_partition, config_edits, controller, elect_leaders, layout, reassignments
from ottla.cluster import changes as c
from ottla.cluster.controller_loop import ControllerLoop
from ottla.cluster.failure_detector import LEASE_SECONDS
from ottla.cluster.image import BrokerRegistration, Image
from ottla.cluster.persist import replica_deleted
from ottla.cluster.requests import (
    AlterPartitionResult,
    ConfigAlteration,
    ConfigResult,
    ControllerDecision,
    ElectionKind,
    InSyncProposal,
    PartitionResult,
    PartitionsSpec,
    Reassignment,
    RegistrationRequest,
    Rules,
    TopicResult,
    TopicSpec,
)
from ottla.cluster.session_lease import SessionLease
from ottla.cluster.store import Conflict, Create, Op, SessionState, Set, Store, Why, sequence_of
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
CONFIRMED_MAX: Final = 200
"""Deleted topics that a broker confirms in one commit."""

OpenStore = Callable[[str, Runtime, str, ZooKeeperOptions | None], Awaitable[Store]]
STORES: Final[dict[str, OpenStore]] = {}
"""Further kinds of store, by the scheme before the colon. The function takes the rest of the URL, the runtime, the
broker's data directory and its options."""


class Cluster:
    """Before `open` the image is empty, and nothing else may be called."""

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
        `lease_seconds`: the session timeout of an embedded store."""
        self.secret: bytes
        """Known to the brokers of this cluster only: they authenticate to each other with it."""
        self.rules = rules or Rules()
        """The rules of the controller; set again when the broker's settings change."""
        self.opened = False
        self._store_url = store_url
        self._data_dir = data_dir
        self._zookeeper = zookeeper
        self._lease_seconds = lease_seconds
        self._session_lease: SessionLease | None = None
        self._view = ClusterView(runtime)
        self._runtime = runtime
        self._controller = ControllerLoop(self._view, runtime, lambda: self.rules)
        self._broker_id = -1

    async def open(self) -> Cluster:
        """Open the store, create a cluster in it if it is empty, and load the image."""
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
        self.opened = True
        return self

    @staticmethod
    async def peek(
        store_url: str, runtime: Runtime, *, data_dir: str, zookeeper: ZooKeeperOptions | None = None
    ) -> tuple[Image, bytes]:
        """The image and the secret of an existing cluster, for a command that is not a broker."""
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
    def registration(self) -> BrokerRegistration | None:
        """The last registration of this broker; its epoch and `clean_since` go into the marker of a clean shutdown."""
        return self._controller.broker

    @property
    def incarnation(self) -> str:
        """The id of this process in all its registrations."""
        return self._controller.incarnation

    @property
    def has_session_lease(self) -> bool:
        """Whether the session lease holds: the store knows this broker as alive, and no other broker has taken over."""
        return self._session_lease is not None and self._session_lease.holds

    def on_session_expired(self, callback: Callable[[], None]) -> None:
        """Call whenever the session has expired, before there is another registration."""
        self._view.store.on_state(lambda state: callback() if state is SessionState.lost else None)

    def on_duplicate_broker_id(self, callback: Callable[[Fault], None]) -> None:
        """Call if another process has registered with this broker id: then this process must end."""
        self._controller.on_duplicate_broker_id = callback

    def expedite(self) -> None:
        """Another broker seems to be gone: check its session now."""
        self._view.store.expedite()

    @property
    def is_controller(self) -> bool:
        return self._controller.active

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call with (image before, image after, change) for every change from now on. Returns what ends it."""
        return self._view.subscribe(callback)

    async def register(self, registration: RegistrationRequest) -> int:
        """Register this broker; become controller if there is none, and elect leaders. The broker epoch. Fault when a
        live broker has the same id."""
        self._broker_id = registration.id
        epoch = await self._controller.join(registration)
        path = layout.broker_path(registration.id)
        self._session_lease = SessionLease(self._view.store, self._runtime, path, self.incarnation)
        return epoch

    async def create_topics(self, specs: Sequence[TopicSpec], *, validate_only: bool = False) -> list[TopicResult]:
        await self._view.catch_up()  # a broker that has just become ready can get replicas
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
        """AlterPartition: a leader's proposals for the ISRs of its partitions."""
        return await self._decide(
            lambda image: alter_partition.alter_partitions(image, broker_id, broker_epoch, proposals, self.rules)
        )

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Sequence[tuple[str, int]] | None
    ) -> list[PartitionResult]:
        """Of these partitions (topic, number), or of all that need it."""
        return await self._decide(lambda image: elect_leaders.elect_leaders(image, kind, partitions, self.rules))

    async def alter_reassignments(
        self, wanted: Sequence[Reassignment], *, factor_may_change: bool = True
    ) -> list[PartitionResult]:
        return await self._decide(
            lambda image: reassignments.alter_reassignments(
                image, wanted, self.rules, factor_may_change=factor_may_change
            )
        )

    async def replicas_deleted(self, topic_ids: Iterable[bytes]) -> None:
        """This broker has deleted its files of these deleted topics (`image.tombstones`). Every broker commits that for
        itself, without the controller."""
        ids = sorted(set(topic_ids))
        for start in range(0, len(ids), CONFIRMED_MAX):
            await self._replicas_deleted(ids[start : start + CONFIRMED_MAX])

    async def _replicas_deleted(self, topic_ids: Sequence[bytes]) -> None:
        for _ in range(ATTEMPTS_MAX):
            changes: list[c.ReplicaDeleted] = []
            ops: list[Op] = []
            for topic_id in topic_ids:
                node = await self._view.store.read(layout.tombstone_path(topic_id))
                if node is None or self._broker_id not in (tombstone := layout.tombstone_of(node.data)).replicas:
                    continue
                changes.append(c.ReplicaDeleted(topic_id, self._broker_id))
                ops.append(replica_deleted(changes[-1], tombstone, node.version))
            if not changes:
                return
            try:
                paths = await self._view.store.commit(
                    [*ops, Create(layout.CHANGE, c.encoded((*changes,)), sequential=True)]
                )
            except Conflict:
                continue  # another broker confirmed one of them
            if not self._view.committed(sequence_of(paths[-1]), (*changes,)):
                await self._view.catch_up()
            return
        raise Fault(f"deleted topics not confirmed in {ATTEMPTS_MAX} attempts: the store is too busy")

    async def drain(self) -> None:
        """Controlled shutdown of this broker: the controller moves its leaders and removes it from ISRs, as far as
        others can take over; `image` shows how far that is."""
        await self._controller.drain()

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids that no other broker ever gets."""
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
        """Return when everything that any broker committed before the call is in the image."""
        await self._view.catch_up()

    async def close(self) -> None:
        """Leave: the registration goes with the session."""
        if self._session_lease is not None:
            await self._session_lease.end()
        await self._controller.close()
        await self._view.close()
        if self.opened:
            await self._view.store.close()

    async def _decide(self, decide: Callable[[Image], ControllerDecision[R]], validate_only: bool = False) -> list[R]:
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
    """Create the nodes of an empty store and the cluster id; refuse a store of a newer release."""
    while (format_node := await store.read(layout.FORMAT)) is None:
        cluster_id = layout.id_text(layout.new_id(runtime.random.randbytes(16)))
        try:
            await store.commit(layout.first_nodes(cluster_id))
        except Conflict as conflict:
            if await store.read(layout.FORMAT) is None:
                raise Fault(f"the store is not empty and not from Ottla: {conflict}") from conflict
    version = layout.decode(format_node.data)["version"]
    if version > layout.FORMAT_VERSION:
        raise Fault(
            f"the cluster's metadata was written by a newer Ottla (layout {version}, this one knows up to "
            f"{layout.FORMAT_VERSION}); use that version"
        )


async def _complete(store: Store) -> None:
    """Create the nodes that earlier releases did not have."""
    for path in layout.ADDED_PATHS:
        if await store.read(path) is None:
            try:
                await store.commit([Create(path)])
            except Conflict as conflict:
                if conflict.why is not Why.exists:  # another broker made it
                    raise Fault(f"the store takes no node {path}: {conflict}") from conflict


async def _secret(store: Store, runtime: Runtime) -> bytes:
    """The cluster's secret, created by the first broker that needs it: earlier releases had none."""
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
