"""A shell in which our commands start at once.

Tests that type what a user would type need dozens of processes, and most of the time of each would go into loading
modules. So one process loads them, and is forked for every command: `ottla`, `python` and Kafka's scripts in this
shell's PATH are small programs that hand over their arguments, their environment and their open files, and wait.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

REPOSITORY = Path(__file__).resolve().parents[2]
REQUEST_BYTES_MAX = 1 << 16

HAND_OVER = """#!{python} -IS
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({path!r})
request = {{"arguments": [{name!r}, *sys.argv[1:]], "directory": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(line, [json.dumps(request).encode()], [0, 1, 2])
answers = line.makefile("rb")  # a command that ends at once may have both sent before the first is read
pid = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
sys.exit(int(answers.readline() or b"1"))
"""


class Shell:
    """`run` has bash run a script, in the repository."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.commands = directory / "bin"
        self.commands.mkdir(parents=True)
        self._path = str(directory / "fork.socket")
        for name in ("ottla", "python"):
            script = self.commands / name
            script.write_text(HAND_OVER.format(python=sys.executable, path=self._path, name=name))
            script.chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{self.commands}:{os.environ['PATH']}",
            "PYTHON": str(self.commands / "python"),
            "OTTLA_BOOTSTRAP_SERVERS": bootstrap,
            "BOOTSTRAP": bootstrap,
        }
        self.environment.pop("PYTHONUNBUFFERED", None)

    def __enter__(self) -> Self:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._path)
        listener.listen(64)
        self._forking = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.shell", str(listener.fileno())],
            cwd=REPOSITORY,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        listener.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._forking.pid, signal.SIGKILL)  # commands that nobody ended, too
        self._forking.wait()

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script],
            cwd=REPOSITORY,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=self.environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )


def serve(listener: socket.socket) -> None:
    """Fork for everyone who comes, until killed."""
    from importlib import import_module

    from ottla.cli.main import NOUNS

    for name in ("topics", "produce", "consume", "groups", "configs", "bench", "serve"):
        import_module(NOUNS[name].module)
    import ottla.runtime.real
    import ottla.testing  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while True:
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(line)
        line.close()


def _attend(line: socket.socket) -> None:
    """One command, in a process that waits for it and one that runs it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, files, _, _ = socket.recv_fds(line, REQUEST_BYTES_MAX, 3)
    request = json.loads(data)
    pid = os.fork()
    if pid == 0:
        line.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        _become(request)
    for file in files:
        os.close(file)
    line.send(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    line.send(b"%d\n" % (os.waitstatus_to_exitcode(status) & 0xFF))
    os._exit(0)


def _become(request: dict) -> None:
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    program, *arguments = request["arguments"]
    status: object = 0
    try:
        if program == "ottla":
            arguments = ["-m", "ottla", *arguments]
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001 (as the interpreter does)
        sys.excepthook(*sys.exc_info())
        status = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
