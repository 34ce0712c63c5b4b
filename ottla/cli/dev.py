"""`ottla dev`: a cluster on this machine, to try things on and to break."""

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

from ottla.cli.cluster import json_option, print_json, print_table
from ottla.cli.failure import Failure, Suggesting
from ottla.errors import Fault

if TYPE_CHECKING:
    from ottla.cluster.ensemble import Ensemble
    from ottla.local.cluster import LocalCluster
    from ottla.local.session import Session

BROKERS_MAX: Final = 9
"""As many as there are keys to choose them with."""
SESSION_MS: Final = 6000
"""How soon a hanging broker is taken for dead: sooner than by default, for whoever waits in front of the screen."""


def default_directory() -> Path:
    return Path(tempfile.gettempdir()) / f"ottla-dev-{os.getuid()}"


class DataDirectory:
    """Where a cluster lives: named and kept, or a temporary one that goes with it."""

    def __init__(self, named: str | None) -> None:
        from ottla.runtime.disk import RealDisk

        self.kept = named is not None
        self.path = Path(named) if named is not None else default_directory()
        self.path.mkdir(mode=0o700, parents=self.kept, exist_ok=True)
        if not self.kept and (self.path.is_symlink() or self.path.stat().st_uid != os.getuid()):
            raise Fault(f"{self.path} belongs to somebody else: name a directory of your own with --data")
        lock = RealDisk().lock(str(self.path / ".lock"))
        if lock is None:
            raise Fault(f"an `ottla dev` is running on {self.path} already: give this one its own with --data DIR")
        self._lock = lock
        if not self.kept:
            self._empty()  # one that was killed could not do it

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
    def told(self, line: str) -> None: ...
    def drawn(self) -> None: ...
    def open(self, session: Session) -> AbstractContextManager[None]: ...


class Lines:
    """What happens, a line each: for files, pipes, and terminals without rich."""

    def told(self, line: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')} {line}")

    def drawn(self) -> None:
        pass

    def open(self, session: Session) -> AbstractContextManager[None]:
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
    help="Port of the first broker, the others follow; one that is taken is replaced.",
)
@click.option("--data", metavar="DIR", help="Where its data lies, and stays.  [default: a temporary directory]")
@click.option("--zookeeper", is_flag=True, help="Keep the metadata in a real ZooKeeper, which is started too.")
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
    # A closed terminal or a plain kill must not be the end before the brokers have been stopped.
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
                view.told(f"port {taken} is taken: broker {broker_id} gets another")
            asyncio.run(_session(cluster, directory, view))
        finally:
            cluster.kill()  # whoever has not stopped by now
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
    from ottla.local.session import Session

    session = Session(cluster, view.told, view.drawn)
    control = ControlServer(cluster.directory, session.commanded)
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
                _welcome(session, directory, view.told)
            await running
    finally:
        await control.close()
    where = f"data stays in {directory.path}" if directory.kept else "its data is gone"
    click.echo(f"all brokers have stopped; {where}")


def _stop_or_kill(session: Session) -> None:
    """The second Ctrl-C of an impatient user."""
    if session.stop.is_set():
        session.cluster.kill()
    session.stop.set()


def _welcome(session: Session, directory: DataDirectory, told: Callable[[str], None]) -> None:
    cluster = session.cluster
    told(f"the cluster serves; clients start from {cluster.bootstrap}")
    kept = "kept" if directory.kept else "removed at the end, --data DIR keeps it"
    told(f"data and logs are in {directory.path} ({kept})")
    server = "" if cluster.brokers[1].port == 9092 else f" -b {cluster.brokers[1].bootstrap}"
    where = f" --data {directory.path}" if directory.kept else ""
    second = min(2, len(cluster.brokers))
    told(f"try in another terminal: ottla topics create orders --partitions 3{server}; ottla dev{where} kill {second}")


# From another terminal.

data_of_running_option = click.option("--data", metavar="DIR", help="The directory it was started with, if any.")


def _ask(data: str | None, verb: str, broker: int | None = None) -> dict[str, Any]:
    from ottla.local.control import command as ask

    named = data or click.get_current_context().obj
    directory = Path(named) if named is not None else default_directory()
    try:
        answer = ask(directory, {"do": verb, "broker": broker})
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
    def tell(broker: int, data: str | None, as_json: bool) -> None:
        said = _ask(data, verb, broker)["said"]
        if as_json:
            print_json({"broker": broker, "did": verb, "said": said})
        else:
            click.echo(said)


_add_verb("kill", "kill -9 a broker of the running cluster.")
_add_verb("pause", "Hang a broker (SIGSTOP).")
_add_verb("resume", "Let a paused broker go on.")
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
    answer = _ask(data, "status")
    answer.pop("ok")
    if as_json:
        print_json(answer)
        return
    rows = [
        (each["id"], each["address"], each["pid"] or "-", _megabytes(each["memory_bytes"]), each["state"])
        for each in answer["brokers"]
    ]
    print_table(("BROKER", "ADDRESS", "PID", "MEMORY", "STATE"), rows)
    click.echo("controller: " + (f"broker {answer['controller']}" if answer["controller"] >= 0 else "nobody"))
    _print_partitions([of for of in answer["partitions"] if not of["internal"]])
    _print_internal([of for of in answer["partitions"] if of["internal"]])
    if answer["will_not_lead"]:
        from ottla.local.session import killed_words

        click.echo(killed_words(answer["will_not_lead"]))
    _print_groups(answer["groups"])


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.0f} MB" if size else "-"


def _print_partitions(partitions: list[dict[str, Any]]) -> None:
    if not partitions:
        return
    click.echo()
    rows = [
        (
            f"{of['topic']}-{of['partition']}",
            of["leader"] if of["leader"] >= 0 else "nobody",
            _commas(of["replicas"]),
            _commas(of["in_sync"]),
            _commas(of["eligible"]) or "-",
            *(each if each >= 0 else "-" for each in of["offsets"].values()),
            of["records_per_second"],
        )
        for of in partitions
    ]
    heads = ("LEADER", "REPLICAS", "IN SYNC", "ELIGIBLE", "LOG START", "HIGH WATERMARK", "LOG END", "RECORDS/S")
    print_table(("PARTITION", *heads), rows)


def _print_internal(partitions: list[dict[str, Any]]) -> None:
    """A line for each internal topic."""
    for topic in sorted({of["topic"] for of in partitions}):
        own = [of for of in partitions if of["topic"] == topic]
        whole = sum(of["leader"] >= 0 and len(of["in_sync"]) == len(of["replicas"]) for of in own)
        click.echo(f"{topic}: {len(own)} partitions, {whole} of them fully in sync")


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


def _commas(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
