"""A Spark cluster of its own on this machine: a master and workers out of the jars that PySpark brings along."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.local.waiting import wait_for

JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"
START_S = 60.0


class Standalone:
    """One core for each worker. What it started goes with it."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self._directory = directory
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            reported = self._start("master", MASTER, r"Starting Spark master at (spark://\S+)", "--port", "0")
            self.url = reported[1]
            for number in range(self._workers):
                work = ["--cores", "1", "--memory", "700m", "--work-dir", str(self._directory / f"work-{number}")]
                self._start(f"worker-{number}", WORKER, r"Successfully registered with master", *work, self.url)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in self.executors():  # they are in sessions of their workers, unless they outlived them
            os.kill(pid, signal.SIGKILL)

    def executors(self) -> list[int]:
        """Those of this cluster, by the address of its worker on their command line."""
        listed = subprocess.run(["ps", "-eww", "-o", "pid,sid,args"], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
        sessions = {str(process.pid) for process in self._processes}
        return [int(pid) for pid, sid, args in rows if sid in sessions and EXECUTOR in args]

    def _start(self, name: str, main: str, ready: str, *arguments: str) -> re.Match[str]:
        import pyspark

        home = Path(pyspark.__file__).parent
        log = self._directory / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), main, "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_JAVA_OPTS": JAVA,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
        self._processes.append(process)
        found = wait_for(
            lambda: re.search(ready, log.read_text()) or (process.poll() is not None or None),
            f"the {name} of Spark",
            START_S,
        )
        assert isinstance(found, re.Match), f"the {name} ended:\n{log.read_text()[-3000:]}"
        return found
