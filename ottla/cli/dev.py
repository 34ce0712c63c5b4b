"""`ottla dev`: a cluster on this machine, for experiments with failures."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from ottla.cli.failure import Failure, Suggesting
from ottla.cli.output import answer, commas, json_option, print_table
from ottla.errors import Fault

if TYPE_CHECKING:
    from ottla.cluster.ensemble import Ensemble
    from ottla.local.cluster import LocalCluster
    from ottla.local.session import DevSession

BROKERS_MAX: Final = 9
"""One key chooses each broker."""
SESSION_MS: Final = 6000
"""Session timeout of a hanging broker: shorter than the default, so that a failover is visible soon."""


def default_directory() -> Path:
    return Path(tempfile.gettempdir()) / f"ottla-dev-{os.getuid()}"


class DataDirectory:
    """Data directory of the cluster: a named one is kept, a temporary one is removed at the end."""

    def __init__(self, named: str | None) -> None:
        from ottla.runtime.disk import RealDisk

        self.kept = named is not None
        self.path = Path(named) if named is not None else default_directory()
        self.path.mkdir(mode=0o700, parents=self.kept, exist_ok=True)
        if not self.kept and (self.path.is_symlink() or self.path.stat().st_uid != os.getuid()):
            raise Fault(f"{self.path} belongs to another user: name a directory of your own with --data")
        lock = RealDisk().lock(str(self.path / ".lock"))
        if lock is None:
            raise Fault(f"an `ottla dev` is running on {self.path} already: give this one its own with --data DIR")
        self._lock = lock
        if not self.kept:
            self._empty()  # files of an `ottla dev` that was killed

    def close(self) -> None:
        if not self.kept:
            self._empty()
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    def _empty(self) -> None:
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != ".lock":
                entry.unlink(missing_ok=True)


class View(Protocol):
    def report(self, line: str) -> None: ...
    def draw(self) -> None: ...
    def open(self, session: DevSession) -> AbstractContextManager[None]: ...


class Lines:
    """One line for each event: for files, pipes, and terminals without rich."""

    def report(self, line: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')} {line}")

    def draw(self) -> None:
        pass

    def open(self, session: DevSession) -> AbstractContextManager[None]:
        return nullcontext()


def _view(plain: bool) -> View:
    if plain or not sys.stdout.isatty():
        return Lines()
    try:
        from ottla.cli.live import LiveView
    except ImportError:
        click.echo("For the live view: pip install rich", err=True)
        return Lines()
    return LiveView()


@click.group("dev", cls=Suggesting, invoke_without_command=True)
@click.option("--brokers", type=click.IntRange(1, BROKERS_MAX), default=3, show_default=True, help="How many brokers.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535 - BROKERS_MAX),
    default=9092,
    show_default=True,
    help="Port of the first broker, the others follow; a port in use is replaced.",
)
@click.option("--data", metavar="DIR", help="Data directory, which is kept.  [default: a temporary directory]")
@click.option("--zookeeper", is_flag=True, help="Start a real ZooKeeper, and keep the metadata in it.")
@click.option("--plain", is_flag=True, help="Lines instead of the live view.")
@click.pass_context
def command(ctx: click.Context, brokers: int, port: int, data: str | None, zookeeper: bool, plain: bool) -> None:
    """Run a cluster of real broker processes on this machine, and watch it.

    Kill, pause and restart brokers with the keys shown, or from another terminal: `ottla dev kill 2`. Other keys write
    records, and start and stop consumers of a group. Ctrl-C stops everything.

    \b
    Example:
      ottla dev --brokers 3
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = data
        return
    # A closed terminal or SIGTERM must stop the brokers, too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        directory = DataDirectory(data)
        try:
            _run(directory, brokers, port, zookeeper, _view(plain))
        finally:
            directory.close()
    except Fault as fault:
        raise Failure(str(fault)) from None
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _run(directory: DataDirectory, brokers: int, port: int, zookeeper: bool, view: View) -> None:
    from ottla.local.cluster import LocalCluster

    ensemble = _start_zookeeper(directory.path) if zookeeper else None
    try:
        settings = dict.fromkeys(("zookeeper.session.timeout.ms", "broker.session.timeout.ms"), str(SESSION_MS))
        cluster = LocalCluster(directory.path, brokers, port=port, settings=settings, ensemble=ensemble)
        try:
            for broker_id, taken in cluster.replaced_ports.items():
                view.report(f"port {taken} is in use: broker {broker_id} gets another")
            asyncio.run(_session(cluster, directory, view))
        finally:
            cluster.kill()  # brokers that have not stopped by now
    finally:
        if ensemble is not None:
            ensemble.stop()


def _start_zookeeper(directory: Path) -> Ensemble:
    from importlib.util import find_spec

    from ottla.cluster.ensemble import Ensemble

    if find_spec("kazoo") is None:
        raise Fault("brokers speak to ZooKeeper through kazoo: pip install 'ottla[zookeeper]'")
    ensemble = Ensemble(directory / "zookeeper")
    click.echo("starting ZooKeeper")
    ensemble.start()
    return ensemble


async def _session(cluster: LocalCluster, directory: DataDirectory, view: View) -> None:
    from ottla.local.control import ControlServer
    from ottla.local.session import DevSession

    session = DevSession(cluster, view.report, view.draw)
    control = ControlServer(cluster.directory, session.execute)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _stop_or_kill, session)
    await control.open()
    try:
        with view.open(session):
            running = asyncio.create_task(session.run())
            started = asyncio.create_task(session.started.wait())
            await asyncio.wait((running, started), return_when=asyncio.FIRST_COMPLETED)
            if not started.cancel() and not session.stop.is_set():
                _print_addresses(session, directory, view.report)
            await running
    finally:
        await control.close()
    where = f"the data is in {directory.path}" if directory.kept else "its data is removed"
    click.echo(f"all brokers have stopped; {where}")


def _stop_or_kill(session: DevSession) -> None:
    """The second Ctrl-C kills."""
    if session.stop.is_set():
        session.cluster.kill()
    session.stop.set()


def _print_addresses(session: DevSession, directory: DataDirectory, report: Callable[[str], None]) -> None:
    cluster = session.cluster
    report(f"the cluster is ready; bootstrap servers: {cluster.bootstrap}")
    kept = "kept" if directory.kept else "removed at the end, --data DIR keeps it"
    report(f"data and logs are in {directory.path} ({kept})")
    server = "" if cluster.brokers[1].port == 9092 else f" -b {cluster.brokers[1].bootstrap}"
    where = f" --data {directory.path}" if directory.kept else ""
    second = min(2, len(cluster.brokers))
    report(
        f"try in another terminal: ottla topics create orders --partitions 3{server}; ottla dev{where} kill {second}"
    )


# Commands from another terminal.

data_of_running_option = click.option("--data", metavar="DIR", help="The directory it was started with, if any.")


def _ask(data: str | None, verb: str, broker: int | None = None) -> dict[str, Any]:
    from ottla.local.control import send_command

    named = data or click.get_current_context().obj
    directory = Path(named) if named is not None else default_directory()
    try:
        answer = send_command(directory, {"do": verb, "broker": broker})
    except Fault as fault:
        raise Failure(str(fault)) from None
    if not answer.get("ok"):
        raise Failure(str(answer.get("said")))
    return answer


def _add_verb(verb: str, text: str) -> None:
    @command.command(verb, help=f"{text}\n\n\b\nExample:\n  ottla dev {verb} 2")
    @click.argument("broker", type=int)
    @data_of_running_option
    @json_option
    def run(broker: int, data: str | None, as_json: bool) -> None:
        said = _ask(data, verb, broker)["said"]
        answer(as_json, {"broker": broker, "did": verb, "said": said}, said)


_add_verb("kill", "kill -9 a broker of the running cluster.")
_add_verb("pause", "Hang a broker (SIGSTOP).")
_add_verb("resume", "Resume a paused broker (SIGCONT).")
_add_verb("restart", "Start a broker that is down, or stop and start one that runs.")
_add_verb("stop", "Stop a broker cleanly.")


@command.command("status")
@data_of_running_option
@json_option
def status(data: str | None, as_json: bool) -> None:
    """Show the brokers and partitions of the running cluster.

    \b
    Example:
      ottla dev status
    """
    value = _ask(data, "status")
    value.pop("ok")
    answer(as_json, value, lambda: _print_status(value))


def _print_status(status: dict[str, Any]) -> None:
    from ottla.local.session import megabytes, not_eligible
    from ottla.local.snapshot import in_sync_summary

    rows = [
        (each["id"], each["address"], each["pid"] or "-", megabytes(each["memory_bytes"]), each["state"])
        for each in status["brokers"]
    ]
    print_table(("BROKER", "ADDRESS", "PID", "MEMORY", "STATE"), rows)
    click.echo("controller: " + (f"broker {status['controller']}" if status["controller"] >= 0 else "none"))
    _print_partitions([of for of in status["partitions"] if not of["internal"]])
    for line in in_sync_summary(
        (of["topic"], of["leader"], of["replicas"], of["in_sync"]) for of in status["partitions"] if of["internal"]
    ):
        click.echo(line)
    if status["will_not_lead"]:
        click.echo(not_eligible(status["will_not_lead"]))
    _print_groups(status["groups"])


def _print_partitions(partitions: list[dict[str, Any]]) -> None:
    if not partitions:
        return
    click.echo()
    rows = [
        (
            f"{of['topic']}-{of['partition']}",
            of["leader"] if of["leader"] >= 0 else "none",
            commas(of["replicas"]),
            commas(of["in_sync"]),
            commas(of["eligible"]) or "-",
            *(each if each >= 0 else "-" for each in of["offsets"].values()),
            of["records_per_second"],
        )
        for of in partitions
    ]
    heads = ("LEADER", "REPLICAS", "IN SYNC", "ELIGIBLE", "LOG START", "HIGH WATERMARK", "LOG END", "RECORDS/S")
    print_table(("PARTITION", *heads), rows)


def _print_groups(groups: list[dict[str, Any]]) -> None:
    if not groups:
        return
    click.echo()
    rows = [
        (
            group["group"],
            group["state"],
            of["member"] or "-",
            f"{of['topic']}-{of['partition']}",
            "-" if of["offset"] is None else of["offset"],
            of["lag"] if of["lag"] >= 0 else "-",
        )
        for group in groups
        for of in group["partitions"]
    ]
    print_table(("GROUP", "STATE", "MEMBER", "PARTITION", "OFFSET", "LAG"), rows)
    for group in groups:
        busy = {of["member"] for of in group["partitions"]}
        for member in group["members"]:
            if member not in busy:
                click.echo(f"{member} of group {group['group']} is idle: no partition is left for it")
