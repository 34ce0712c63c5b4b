"""`make demo`: while the first act runs, PySpark is fetched in the background; then the second act, with Spark.

The second act has its own virtual environment (`.venv-spark`), so that the one of the first act does not change. If
the download fails (no network, a full disk), the reason is printed, and the demo ends after the first act.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv-spark"
LOG = HOME / "install.log"
DONE = HOME / ".installed"
EXTRAS = ".[spark,postgres,pgserver]"
NICE = 10
"""Low priority: the first act measures the duration of a failover."""
PAUSE_S = 2.0
"""Between two lines, if standard output is not a terminal."""


def fetch() -> subprocess.Popen[bytes] | None:
    """Start the installation; None if it is complete."""
    if DONE.exists() and DONE.stat().st_mtime > (ROOT / "pyproject.toml").stat().st_mtime:
        return None
    pip = f"'{HOME}/bin/python' -m pip install --disable-pip-version-check --editable '{EXTRAS}'"
    return begin(f"'{sys.executable}' -m venv '{HOME}' && {pip} && rm -rf '{HOME}/tmp' && touch '{DONE}'")


def begin(script: str) -> subprocess.Popen[bytes]:
    """What it downloads goes to a folder in `HOME` first, so that it can be seen to grow."""
    (HOME / "tmp").mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "TMPDIR": str(HOME / "tmp")}
    with LOG.open("wb") as log:
        command = ["nice", "-n", str(NICE), "sh", "-c", script]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)


def megabytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # pip moves its files about
                continue
    return total // 2**20


def wait(fetching: subprocess.Popen[bytes]) -> bool:
    began = time.monotonic()
    again, end, pause_s = ("\r", "", 1.0) if sys.stdout.isatty() else ("", "\n", PAUSE_S)
    while fetching.poll() is None:
        line = f"Fetching PySpark: {megabytes(HOME)} MB are here, {time.monotonic() - began:.0f} s "
        print(again + line, end=end, flush=True)
        time.sleep(pause_s)
    print(flush=True)
    return fetching.returncode == 0


def main() -> int:
    print("PySpark is being fetched for the second act (456 MB, once); make demo SPARK=0 does without.", flush=True)
    fetching = fetch()
    try:
        first = subprocess.run([sys.executable, "-m", "demo"], cwd=ROOT, check=False).returncode
        if first != 0:
            return first
        if fetching is not None and not wait(fetching):
            last = LOG.read_text(errors="replace").strip().splitlines()[-1:]
            print(f"There is no second act: PySpark could not be installed ({' '.join(last)}). See {LOG}.")
            return 0
        print("\nAct 2: actors from a database, enriched, into a topic, a table and files.\n", flush=True)
        command = [str(HOME / "bin" / "python"), "-m", "examples.actors"]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    except KeyboardInterrupt:
        return 130
    finally:
        if fetching is not None and fetching.poll() is None:
            os.killpg(fetching.pid, 15)


if __name__ == "__main__":
    sys.exit(main())
