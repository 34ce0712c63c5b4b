"""What the systems are made of: jars from Maven, virtual environments from pip, modules from npm; fetched once.

Everything lies in the git-ignored cache directory. Each Python system has an environment of its own, so that their
versions of one client cannot get into each other's way. A version that is not pinned by a caller is the newest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.maven import CACHE, Unavailable, copy_dependencies, kafka_jars, kafka_version

HOME: Final = CACHE / "ecosystem"
PROGRAMS: Final = Path(__file__).parent / "programs"
"""What is run beside the brokers: by Java, by Node.js, or by an interpreter that has the one system installed."""
INSTALL_SECONDS: Final = 900
DEPENDENCY: Final = (
    "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>\n"
)
POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ecosystem</groupId><artifactId>{}-jars</artifactId><version>1</version>
  <dependencies>
{}  </dependencies>
</project>
"""


def kafka() -> str:
    """Which Apache Kafka the brokers of the other side, and Kafka's own systems, are."""
    version = kafka_version(kafka_jars())
    assert version is not None
    return version


def jars(name: str, *artifacts: str) -> Path:
    """A directory with these artifacts (`group:artifact:version`) and what they need at run time."""
    named = [artifact.split(":") for artifact in artifacts]
    pom = POM.format(name, "".join(DEPENDENCY.format(*each) for each in named))
    home = HOME / name
    if not (home / "pom.xml").exists() or (home / "pom.xml").read_text() != pom:
        shutil.rmtree(home, ignore_errors=True)
    wanted = [f"{artifact}-{version}.jar" for _, artifact, version in named]
    return copy_dependencies(home, pom, f"{name}'s jars", lambda made: all((made / each).exists() for each in wanted))


def compiled(program: str, classpath: Path) -> Path:
    """A directory with the classes of one Java file."""
    source = PROGRAMS / program
    if shutil.which("javac") is None:
        raise Unavailable("javac is not installed (a JDK, 17 or newer, is needed)")
    text = source.read_text()
    classes = HOME / "classes" / f"{source.stem}-{hashlib.sha256((text + str(classpath)).encode()).hexdigest()[:12]}"
    if not (classes / "done").exists():
        shutil.rmtree(classes, ignore_errors=True)
        classes.mkdir(parents=True)
        _run(["javac", "-nowarn", "-cp", f"{classpath}/*", "-d", str(classes), str(source)], f"javac {source.name}")
        (classes / "done").touch()
    return classes


def environment(name: str, *requirements: str) -> Path:
    """The interpreter of a virtual environment with these packages."""
    home = HOME / f"venv-{name}"
    python = home / "bin" / "python"
    mark = home / "requirements.txt"
    listed = "\n".join(requirements)
    if not mark.exists() or mark.read_text() != listed:
        shutil.rmtree(home, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(home)], "venv")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *requirements], f"pip install {' '.join(requirements)}")
        mark.write_text(listed)
    return python


def package_version(python: Path, package: str) -> str:
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


def node_modules(name: str, *packages: str, env: Mapping[str, str] | None = None) -> Path:
    """A directory in which Node.js finds these packages; `env` is for the scripts that install them."""
    if shutil.which("npm") is None:
        raise Unavailable("npm is not installed")
    home = HOME / f"npm-{name}"
    mark = home / "installed"
    listed = "\n".join(packages)
    if not mark.exists() or mark.read_text() != listed:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        (home / "package.json").write_text('{"private": true}\n')
        _run(["npm", "install", "--no-audit", "--no-fund", *packages], f"npm install {' '.join(packages)}", home, env)
        mark.write_text(listed)
    return home


def module_version(home: Path, package: str) -> str:
    return str(json.loads((home / "node_modules" / package / "package.json").read_text())["version"])


def _run(command: Sequence[str], what: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what} did not end within {INSTALL_SECONDS // 60} minutes") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise Unavailable(f"{what} failed: {' / '.join(said[-6:])}")
