"""`make demo`, act 1: three brokers, a steady producer, kill -9 of a leader, and a count of every record; then a group
that loses a member. All output comes from the running cluster, or from counting its log."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from demo.screen import show_until
from demo.writer import PARTITIONS, RECORDS_PER_SECOND, TOPIC, Writer, count, read_back
from ottla.cli.dev import Lines
from ottla.client.admin import Admin
from ottla.client.errors import ClientError
from ottla.cluster.ensemble import end_with
from ottla.errors import Fault
from ottla.local.cluster import LocalCluster
from ottla.local.control import ControlServer
from ottla.local.processes import BrokerProcess
from ottla.local.session import DevSession, megabytes
from ottla.local.snapshot import NO_BROKER, ClusterSnapshot, MetadataWatcher

PORT = 9092
GROUP = "kitchen"
SESSION_MS = 3000
SECONDS_BEFORE_KILL = 3.0
SECONDS_AFTER_KILL = 2.0
SETTINGS = {"group.min.session.timeout.ms": "1000", "offsets.topic.num.partitions": "3"}


class Demo:
    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory, 3, port=PORT, settings=SETTINGS)
        self.watcher = MetadataWatcher()
        self.members: dict[str, subprocess.Popen[bytes]] = {}
        self.faults = 0
        self.writer: Writer | None = None

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap_all

    async def snapshot(self) -> ClusterSnapshot:
        return await self.watcher.look(each.bootstrap for each in self.cluster.serving()) or ClusterSnapshot()

    async def play(self) -> None:
        await self.start()
        writer = self.writer = Writer(self.bootstrap)
        writer.start()
        await self.write_for(SECONDS_BEFORE_KILL)
        killed, seconds = await self.kill_a_leader()
        await self.write_for(SECONDS_AFTER_KILL)
        writer.stop()
        self.count(seconds)
        await self.bring_back(killed)
        await self.group()

    # Three brokers.

    async def start(self) -> None:
        print("Starting three brokers.", flush=True)
        for broker_id, port in self.cluster.replaced_ports.items():
            print(f"  port {port} is in use: broker {broker_id} gets another")
        for broker in self.cluster.brokers.values():
            broker.launch()
        for broker in self.cluster.brokers.values():
            await broker.until_ready()
            started = f"ready in {broker.ready_seconds:.2f} s on {broker.bootstrap}"
            print(f"  {broker} {started}, {megabytes(broker.resident_bytes())} of memory", flush=True)
        await show_until(
            self.snapshot,
            lambda snapshot: len(snapshot.brokers) == 3,
            lambda now, _: f"{len(now.brokers)} brokers are registered; broker {now.controller} is the controller",
        )
        self.create_topic()
        print(
            f"Writing with confluent-kafka, {RECORDS_PER_SECOND:,} records a second, idempotent, acks=all:\n"
            "each record is on at least two of its three replicas before it is acknowledged.",
            flush=True,
        )

    def create_topic(self) -> None:
        create = ["topics", "create", TOPIC, "--partitions", str(PARTITIONS)]
        create += ["--bootstrap-server", self.cluster.brokers[1].bootstrap]
        print(f"  $ ottla {' '.join(create)}", flush=True)
        subprocess.run([sys.executable, "-m", "ottla", *create], check=True, stdout=subprocess.DEVNULL)

    # A leader dies.

    async def write_for(self, seconds: float) -> None:
        writer = self._writing()
        before = writer.acknowledged_count

        async def written() -> int:
            return writer.acknowledged_count - before

        began = time.monotonic()
        await show_until(
            written,
            lambda _: time.monotonic() - began > seconds,
            lambda n, passed: f"{n:>7,} records acknowledged, {n / max(passed, 0.001):>7,.0f} a second",
        )

    async def kill_a_leader(self) -> tuple[BrokerProcess, float]:
        """kill -9 of the leader of partition 0; returns the seconds until its partitions have new leaders."""
        snapshot = await self.snapshot()
        leader = self.cluster[snapshot.partitions[TOPIC, 0].leader]
        led = [n for n in range(PARTITIONS) if snapshot.partitions[TOPIC, n].leader == leader.id]
        print(f"kill -9 {leader.pid}: {leader}, which leads partitions {', '.join(map(str, led))}.", flush=True)
        leader.kill()
        killed = time.monotonic()
        _, seconds = await show_until(
            self.snapshot,
            lambda snapshot: {_leader(snapshot, n) for n in led}.isdisjoint((leader.id, NO_BROKER)),
            lambda snapshot, passed: f"{passed:.2f} s: {_leaders(snapshot, led)}",
        )
        writer = self._writing()

        async def written_to() -> int:
            return sum(moment > killed + 0.05 for moment in writer.last_acknowledged)

        await show_until(
            written_to,
            lambda partitions: partitions == PARTITIONS,
            lambda seen, _: f"{time.monotonic() - killed:.2f} s: {seen} of {PARTITIONS} partitions written to again",
        )
        return leader, seconds

    def count(self, new_leader_s: float) -> None:
        writer = self._writing()
        print("Reading everything back.", flush=True)
        began = time.monotonic()
        stored = read_back(self.cluster.bootstrap)
        print(f"  {sum(map(len, stored)):,} records in {time.monotonic() - began:.2f} s")
        lost, duplicated, reordered = count(writer.acknowledged, stored)
        print(
            f"\nnew leader after {new_leader_s:.2f} s · acknowledged {writer.acknowledged_count:,} · lost {lost} · "
            f"duplicated {duplicated} · reordered {reordered}\n",
            flush=True,
        )
        if writer.failures:
            print(f"{len(writer.failures)} records were not delivered, the first because of: {writer.failures[0]}")
        self.faults += lost + duplicated + reordered + len(writer.failures)

    async def bring_back(self, killed: BrokerProcess) -> None:
        killed.launch()
        await killed.until_ready()
        print(f"{killed} is started again: ready in {killed.ready_seconds:.2f} s.", flush=True)

        def in_sync(snapshot: ClusterSnapshot) -> int:
            states = [state for (topic, _), state in snapshot.partitions.items() if topic == TOPIC]
            return sum(killed.id in state.in_sync for state in states)

        await show_until(
            self.snapshot,
            lambda snapshot: in_sync(snapshot) == PARTITIONS,
            lambda snapshot, passed: f"{passed:.2f} s: in sync with {in_sync(snapshot)} of {PARTITIONS} partitions",
        )

    # A group.

    async def group(self) -> None:
        print(f"Two consumers, each in its own process, join group {GROUP} and read all records.", flush=True)
        for name in ("anna", "bert"):
            self.join(name)
        async with Admin(self.bootstrap) as admin:
            await self._lag_falls(admin, members=2)
            shares = await self._shares(admin)
            print(f"kill -9 {self.members['anna'].pid}: anna, who has partitions {shares['anna']}.", flush=True)
            print(
                f"  The coordinator removes her when her session times out, after {SESSION_MS / 1000:g} s "
                f"(session.timeout.ms={SESSION_MS}). Until then no member reads her partitions.",
                flush=True,
            )
            self.members["anna"].kill()
            writer = Writer(self.bootstrap)
            writer.rate = RECORDS_PER_SECOND // 10
            writer.start()
            try:
                await show_until(
                    lambda: self._shares(admin),
                    lambda shares: set(shares) == {"bert"} and shares["bert"].count(",") == PARTITIONS - 1,
                    lambda shares, passed: (
                        f"{passed:.2f} s: "
                        + " · ".join(
                            f"{name}{' (dead, not removed yet)' if name == 'anna' else ''} has {share or 'none'}"
                            for name, share in sorted(shares.items())
                        )
                    ),
                )
            finally:
                writer.stop()
            await self._lag_falls(admin, members=1)

    def join(self, name: str) -> None:
        arguments = [self.bootstrap, TOPIC, GROUP, name, str(SESSION_MS)]
        self.members[name] = subprocess.Popen(
            [sys.executable, "-m", "demo.member", *arguments],
            start_new_session=True,
            preexec_fn=end_with(os.getpid()),
        )

    async def _lag_falls(self, admin: Admin, *, members: int) -> None:
        async def look() -> tuple[int, int, int]:
            try:
                lags = await admin.group_lag(GROUP)
                sharing = sum(bool(share) for share in (await self._shares(admin)).values())
            except ClientError:
                return 0, 0, 0  # the first member has not joined yet
            return len(lags), sharing, sum(each.lag for each in lags.values())

        await show_until(
            look,
            lambda seen: seen == (PARTITIONS, members, 0),
            lambda seen, passed: f"{passed:.2f} s: {_members(seen[1])} reading, lag {seen[2]:,} records",
        )

    async def _shares(self, admin: Admin) -> dict[str, str]:
        try:
            described = (await admin.describe_groups([GROUP]))[GROUP]
        except ClientError:
            return {}
        return {
            member.client_id: ", ".join(str(tp.partition) for tp in sorted(member.partitions))
            for member in described.members
        }

    # The end.

    async def stay(self) -> None:
        """Keep the cluster running, for experiments."""
        ottla = Path(sys.executable).parent / "ottla"
        here = self.cluster.directory
        first = self.cluster.brokers[1].bootstrap
        server = "" if first.endswith(f":{PORT}") else f" -b {first}"
        print(f"\nStill running on {first.replace('127.0.0.1', 'localhost')}, try:")
        print(f"  {ottla} topics describe {TOPIC}{server}")
        print(f"  {ottla} dev status --data {here}")
        print(f"  {ottla} dev kill 2 --data {here}")
        print("Ctrl-C ends it.", flush=True)
        view = Lines()
        session = DevSession(self.cluster, view.report)
        control = ControlServer(here, session.execute)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, session.stop.set)
        await control.open()
        try:
            await session.run()
        finally:
            await control.close()

    async def end(self) -> None:
        await self.watcher.close()
        if self.writer is not None:
            self.writer.stop()
        for member in self.members.values():
            member.kill()
            member.wait()
        self.cluster.stop()

    def _writing(self) -> Writer:
        assert self.writer is not None
        return self.writer


def _leader(snapshot: ClusterSnapshot, partition: int) -> int:
    state = snapshot.partitions.get((TOPIC, partition))
    return NO_BROKER if state is None else state.leader


def _leaders(snapshot: ClusterSnapshot, partitions: list[int]) -> str:
    leaders = {n: _leader(snapshot, n) for n in partitions}
    names = {n: "no broker" if leader == NO_BROKER else f"broker {leader}" for n, leader in leaders.items()}
    return ", ".join(f"{name} leads partition {n}" for n, name in names.items())


def _members(number: int) -> str:
    return "1 member" if number == 1 else f"{number} members"


async def run(directory: Path) -> int:
    demo = Demo(directory)
    try:
        await demo.play()
        if demo.faults == 0 and sys.stdin.isatty() and sys.stdout.isatty():
            await demo.stay()
        return 1 if demo.faults else 0
    finally:
        await demo.end()


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ottla-demo-", ignore_cleanup_errors=True) as directory:
        try:
            return asyncio.run(run(Path(directory)))
        except (Fault, ClientError) as fault:
            print(f"demo: {fault}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nstopped")
            return 130


if __name__ == "__main__":
    sys.exit(main())
