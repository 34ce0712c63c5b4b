"""Damaged files of a broker: removed, emptied, truncated, extended, or with one flipped bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from ottla.log.manifest import FILE_NAME as MANIFEST
from ottla.wire.batch import batches

MAGIC_AT = 16
"""Where the bytes of a batch begin that its checksum covers, or that lead to it."""
EXTENDED_BYTES = 90

_LEFT_OVER = (".damaged", ".tmp", ".cleaned", ".deleted", ".swap")
_ACTS = ("removed", "emptied", "truncated", "extended", "flipped")


def damage_a_file(data: Path, random: Random) -> str:
    """One file of one partition, of a broker that does not run. What was done."""
    directory = random.choice(sorted({path.parent for path in data.glob("*-*/*.log")}))
    if random.random() < 0.1:
        shutil.rmtree(directory)
        return f"{directory.name} was removed"
    files = [each for each in sorted(directory.iterdir()) if each.name == MANIFEST or each.suffix not in _LEFT_OVER]
    logs = [each for each in files if each.suffix == ".log"]
    path, act = random.choice(logs if random.random() < 0.6 else files), random.choice(_ACTS)
    content = path.read_bytes()
    if act == "removed":
        path.unlink()
    elif act == "flipped" and content:
        _flip(path, content, random)
    else:
        kept = {"emptied": 0, "truncated": random.randrange(len(content) + 1)}.get(act, len(content))
        more = random.randbytes(random.randint(1, EXTENDED_BYTES)) if act == "extended" else b""
        path.write_bytes(content[:kept] + more)
    return f"{directory.name}/{path.name} was {act}"


def flip_a_bit(data: Path, random: Random) -> str | None:
    """In a closed segment that the manifest has, of a broker that runs. What was done; None if there is none."""
    found = []
    for manifest in sorted(data.glob(f"*-*/{MANIFEST}")):
        for line in manifest.read_text().splitlines():
            if line.startswith("segment "):
                path = manifest.with_name(f"{int(line.split()[1]):020d}.log")
                found += [path] if path.exists() and path.stat().st_size else []
    if not found:
        return None
    path = random.choice(found)
    _flip(path, path.read_bytes(), random)
    return f"a bit of {path.parent.name}/{path.name} was flipped"


def _flip(path: Path, content: bytes, random: Random) -> None:
    at = random.randrange(len(content))
    if path.suffix == ".log":
        position, header = random.choice(list(batches(content)))
        at = position + random.randrange(MAGIC_AT, header.size)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ 1 << random.randrange(8)]))
