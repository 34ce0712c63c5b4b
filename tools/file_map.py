"""Write the map of files, docs/FILES.md, from the first words of each module.

    python tools/file_map.py

A test fails if the map is out of date.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENT = REPOSITORY / "docs" / "FILES.md"
BEGIN = "<!-- The map is written by tools/file_map.py. -->"
END = "<!-- End of the map. -->"
GENERATED = REPOSITORY / "ottla" / "wire" / "schema"
WORDS_MAX = 130

# Rooms in the order of imports, lowest first; a room that is not listed comes last.
ROOMS = ("", "runtime", "config", "wire", "access", "net", "log", "cluster", "replication", "coordinator", "broker")


def first_words(path: Path) -> str:
    """The first paragraph of the docstring, or its first sentence when that is long."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(text.split("\n\n")[0].split()).replace("|", "/")
    if len(paragraph) <= WORDS_MAX:
        return paragraph
    sentence = re.match(r".+?[.:](?=\s|$)", paragraph)
    return re.sub(r":$", ".", sentence[0]) if sentence else paragraph


def modules() -> dict[str, list[Path]]:
    """Every module that is not empty, by room."""
    rooms: dict[str, list[Path]] = {}
    for path in sorted((REPOSITORY / "ottla").rglob("*.py")):
        if path.is_relative_to(GENERATED) or not path.read_text().strip():
            continue
        steps = path.relative_to(REPOSITORY / "ottla").parts
        rooms.setdefault(steps[0] if len(steps) > 1 else "", []).append(path)
    return rooms


def written_map() -> str:
    rooms = modules()
    known = [room for room in ROOMS if room in rooms]
    lines = []
    for room in [*known, *sorted(rooms.keys() - set(ROOMS))]:
        lines += [f"## ottla/{room}", "", "| file | |", "|---|---|"]
        lines += [f"| `{path.relative_to(REPOSITORY).as_posix()}` | {first_words(path)} |" for path in rooms[room]]
        if room == "wire":
            lines.append("| `ottla/wire/schema/` | Generated: version-blind classes of one API per module. |")
        lines.append("")
    return "\n".join(lines)


def with_map(document: str) -> str:
    head, _, rest = document.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{written_map()}\n{END}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_map(DOCUMENT.read_text()))
    print(f"wrote {DOCUMENT.relative_to(REPOSITORY)}")
