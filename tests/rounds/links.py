"""The links between brokers, in our hands: a proxy before each broker's inter-broker listener, which the others are
told as its address. What goes from one broker to another can be held back or slowed down, each direction by itself.

Data that is held back is delivered when the link is healed, as TCP does; connections are made meanwhile, and stay
silent. Who connects is found out through the kernel's table of sockets: the proxies know the brokers' processes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterable

from ottla.cluster.ensemble import HOST, free_ports
from ottla.local.cluster import LocalCluster

PEERS = "PEERS"
CHUNK_BYTES = 65536
LOOK_SECONDS = 0.01
POSSIBLE = sys.platform.startswith("linux")

Pair = tuple[int, int]
"""From whom, to whom."""


class Links:
    """Put between the brokers of a cluster before it is started."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._cut: set[Pair] = set()
        self._delay_s: dict[Pair, float] = {}
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._behind: dict[int, int] = {}
        ports = free_ports(3 * len(cluster.brokers))
        for broker in cluster.brokers.values():
            client, peers, proxy = ports.pop(), ports.pop(), ports.pop()
            self._behind[broker.id] = peers
            broker.settings |= {
                "listeners": f"PLAINTEXT://{HOST}:{client},{PEERS}://{HOST}:{peers}",
                "advertised.listeners": f"{PEERS}://{HOST}:{proxy}",
                "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{PEERS}:PLAINTEXT",
                "inter.broker.listener.name": PEERS,
            }
            self._loop.run_until_complete(self._listen(broker.id, proxy))
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _hang_up(self) -> None:
        for server in self._servers:
            server.close()
        for _ in range(3):  # who was accepted last has begun, and can end what it holds
            await asyncio.sleep(0)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for the transports to be gone

    def cut(self, pairs: Iterable[Pair]) -> None:
        self._cut |= set(pairs)

    def slow(self, pairs: Iterable[Pair], seconds: float) -> None:
        self._delay_s |= dict.fromkeys(pairs, seconds)

    def heal(self) -> None:
        self._cut.clear()
        self._delay_s.clear()

    async def _listen(self, broker_id: int, port: int) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            source = self._who(writer.get_extra_info("peername")[1])
            try:
                onward = await asyncio.open_connection(HOST, self._behind[broker_id])
            except (OSError, asyncio.CancelledError):
                writer.transport.abort()
                return
            there = self._carry((source, broker_id), reader, onward[1])
            back = self._carry((broker_id, source), onward[0], writer)
            await asyncio.gather(there, back)

        self._servers.append(await asyncio.start_server(connected, HOST, port))

    async def _carry(self, pair: Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                if delay_s := self._delay_s.get(pair):
                    await asyncio.sleep(delay_s)
                while pair in self._cut:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()  # who hangs up, or is killed, does so on both sides

    def _who(self, port: int) -> int:
        """The broker that has the socket with this local port; -1 for nobody we know."""
        wanted = f"0100007F:{port:04X}"
        with open("/proc/net/tcp") as table:
            inodes = {fields[9] for line in table if (fields := line.split())[1] == wanted}
        sockets = {f"socket:[{inode}]" for inode in inodes}
        for broker in self._cluster.brokers.values():
            directory = f"/proc/{broker.pid}/fd"
            try:
                if any(_points_to(f"{directory}/{name}") in sockets for name in os.listdir(directory)):
                    return broker.id
            except OSError:
                continue
        return -1


def _points_to(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
