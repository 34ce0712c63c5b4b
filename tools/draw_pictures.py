"""Draws the pictures of docs/learn.md: `python tools/draw_pictures.py` writes docs/pictures/*.svg.

Each is one SVG for light and dark pages: colours are classes, and a media query changes them. Leaders are red and
replicas blue, as in the course texts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent.parent / "docs" / "pictures"

STYLE = """
text { font-family: system-ui, -apple-system, 'Segoe UI', sans-serif; font-size: 14px; fill: #22262b }
.mono { font-family: 'DejaVu Sans Mono', ui-monospace, Menlo, monospace; font-size: 13px; white-space: pre }
.title { font-size: 16px; font-weight: 600 }
.small { font-size: 12px; fill: #5a6470 }
.middle { text-anchor: middle }
.end { text-anchor: end }
.page { fill: #ffffff }
.box { fill: #f4f6f8; stroke: #8a94a0 }
.cell { fill: #e6eaee; stroke: #8a94a0 }
.open { fill: none; stroke: #8a94a0; stroke-dasharray: 4 3 }
.leader { fill: #d5352c; stroke: #d5352c }
.replica { fill: #2f6fd0; stroke: #2f6fd0 }
.other { fill: #6b4fa8; stroke: #6b4fa8 }
.gone { fill: #c9ced4; stroke: #8a94a0 }
.on { fill: #ffffff }
.red { fill: #c4271f }
.blue { fill: #1f5cb8 }
.green { fill: #1c7a3f }
.line { stroke: #5a6470; stroke-width: 1.5; fill: none }
.arrow { fill: #5a6470 }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ed }
.small { fill: #a3adb8 }
.page { fill: #14171b }
.box { fill: #1f242a; stroke: #6b7683 }
.cell { fill: #2b323a; stroke: #6b7683 }
.open { stroke: #6b7683 }
.leader { fill: #d9453c; stroke: #d9453c }
.replica { fill: #3f7fe0; stroke: #3f7fe0 }
.other { fill: #8468c6; stroke: #8468c6 }
.gone { fill: #3a424b; stroke: #6b7683 }
.on { fill: #ffffff }
.red { fill: #ff7b72 }
.blue { fill: #79b0ff }
.green { fill: #6fd08c }
.line { stroke: #a3adb8 }
.arrow { fill: #a3adb8 }
}
"""

Lines = list[str]


def svg(width: int, height: int, title: str, description: str, parts: Iterable[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    about = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
    page = f'<rect class="page" width="{width}" height="{height}" rx="8"/>'
    heading = text(20, 32, title, "title")
    return "\n".join([head, about, f"<style>{STYLE}</style>", page, heading, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{named} xml:space="preserve">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box", round_: float = 6) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_:g}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A straight line with a head at its end."""
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    back_x, back_y = x2 - 9 * dx, y2 - 9 * dy
    head = f"{x2:.1f},{y2:.1f} {back_x - 4 * dy:.1f},{back_y + 4 * dx:.1f} {back_x + 4 * dy:.1f},{back_y - 4 * dx:.1f}"
    line = f'<path class="line" d="M{x1:.1f},{y1:.1f} L{back_x:.1f},{back_y:.1f}"/>'
    return f'{line}<polygon class="arrow" points="{head}"/>'


def log() -> str:
    """One partition: offsets, high watermark, log end, two groups."""
    parts: Lines = []
    left, top, cell = 60, 96, 50
    for offset in range(12):
        x = left + offset * cell
        parts += [box(x, top, cell, 44, "cell", 0), text(x + cell / 2, top + 27, str(offset), "middle")]
    x = left + 12 * cell
    parts += [box(x, top, cell, 44, "open", 0), text(x + cell / 2, top + 27, "12", "middle small")]
    parts += [text(x + cell, 66, "producer at 12", "end"), arrow(x + cell / 2, 72, x + cell / 2, top - 2)]
    high = left + 10 * cell
    parts += [f'<path class="line" d="M{high},84 L{high},164"/>', text(high + 4, 78, "high watermark 10", "end blue")]
    parts += [text(x + cell, 162, "log end offset 12", "end red")]
    for name, offset in (("group A", 6), ("group B", 9)):
        middle = left + offset * cell + cell / 2
        parts += [arrow(middle, 196, middle, 144), text(middle, 214, f"{name} reads at {offset}", "middle")]
    words = "Below the high watermark: committed, all in-sync replicas have it, consumers see it. Above: not yet."
    parts.append(text(20, 246, words, "small"))
    about = "Twelve offsets, high watermark 10, log end 12, group A at 6, group B at 9"
    return svg(760, 262, "A partition is a log", about, parts)


def four_brokers() -> str:
    """Four partitions, four brokers, replication factor 2."""
    parts: Lines = []
    arrows: Lines = []
    for number in range(4):
        x = 24 + number * 180
        parts += [box(x, 54, 164, 138), text(x + 82, 78, f"broker {number + 1}", "middle")]
        for row, (partition, kind, word) in enumerate(
            ((number, "leader", "leader"), ((number - 1) % 4, "replica", "follower"))
        ):
            y = 92 + row * 46
            parts += [box(x + 14, y, 136, 36, kind), text(x + 82, y + 23, f"P{partition}  {word}", "middle on")]
        if number < 3:
            arrows.append(arrow(x + 150, 112, x + 193, 152))
    arrows.append('<path class="line" d="M714,110 L746,110 L746,208 L10,208 L10,156 L28,156"/>')
    arrows.append('<polygon class="arrow" points="37,156 28,152 28,160"/>')
    words = "Leaders red, followers blue. Each follower fetches from its leader, and takes over if the leader fails."
    about = "Each broker leads one partition and follows another"
    title = "Four brokers, four partitions, replication factor 2"
    return svg(756, 254, title, about, [*parts, *arrows, text(20, 236, words, "small")])


def _replicas(
    x: float, y: float, held: tuple[int, int, int], kinds: tuple[str, str, str], words: tuple[str, str, str]
) -> Lines:
    """Three bars, one for each replica: how many hundred records it has, and what it is."""
    parts: Lines = []
    for number, (hundreds, kind, word) in enumerate(zip(held, kinds, words, strict=True)):
        top = y + number * 26
        parts.append(text(x, top + 14, str(number + 1), "small"))
        for step in range(3):
            shape = kind if step < hundreds else "open"
            parts.append(box(x + 14 + step * 32, top, 30, 18, shape, 2))
        parts.append(text(x + 116, top + 14, word, "small"))
    return parts


def failures() -> str:
    """Three replicas fail one by one, and the two recoveries."""
    steps = (
        ("all in sync", (1, 1, 1), ("leader", "replica", "replica"), ("leader", "in sync", "in sync")),
        ("replica 3 fails", (2, 2, 1), ("leader", "replica", "gone"), ("leader", "in sync", "out of sync")),
        ("replica 2 fails", (3, 2, 1), ("leader", "gone", "gone"), ("leader, alone", "out of sync", "out of sync")),
        ("the leader fails", (3, 2, 1), ("gone", "gone", "gone"), ("dead, in sync", "dead", "dead")),
    )
    parts: Lines = []
    for number, (title, held, kinds, words) in enumerate(steps):
        x = 20 + number * 240
        parts += [
            box(x, 50, 228, 118),
            text(x + 14, 72, f"{number + 1}. {title}"),
            *_replicas(x + 14, 82, held, kinds, words),
        ]
    parts += [arrow(854, 168, 320, 206), arrow(854, 168, 760, 206)]
    recoveries = (
        (20, "A. Wait for the leader", "Writes fail until replica 1 is back. Nothing is lost.", "green",
         (3, 3, 3), ("leader", "replica", "replica"), ("leader", "in sync", "in sync")),
        (500, "B. Elect the first that comes back", "Replica 3 leads: the 200 records that it missed are lost.", "red",
         (1, 1, 1), ("replica", "replica", "leader"), ("truncated by 200", "truncated by 100", "leader")),
    )  # fmt: skip
    for x, title, outcome, colour, held, kinds, roles in recoveries:
        parts += [box(x, 208, 468, 138), text(x + 14, 230, title), text(x + 14, 250, outcome, colour)]
        parts += _replicas(x + 14, 262, held, kinds, roles)
    parts += [text(20, 370, "Each block is 100 records of one partition, on disk. Grey: the broker is down.", "small")]
    return svg(988, 386, "Three replicas fail one by one, and the two recoveries", "Clean and unclean recovery", parts)


def discovery() -> str:
    """Any bootstrap broker leads to all."""
    parts: Lines = [
        box(24, 108, 150, 64),
        text(99, 134, "other", "middle"),
        text(99, 154, "knows broker 2", "middle small"),
    ]
    for number, y in enumerate((54, 118, 182), 1):
        parts += [box(560, y, 190, 46), text(655, y + 20, f"broker {number}", "middle")]
        parts.append(text(655, y + 37, f"leads partition {number - 1}", "middle small"))
    parts += [arrow(176, 128, 556, 128), text(366, 121, "1. connect, ask for metadata", "middle")]
    parts += [arrow(556, 150, 176, 150), text(392, 164, "2. all brokers, topics, partitions, leaders", "middle")]
    parts += [arrow(176, 114, 556, 78), text(300, 84, "3. connect to the leaders it needs", "middle")]
    parts.append(arrow(176, 166, 556, 204))
    parts.append(
        text(
            20,
            258,
            "Every broker is a bootstrap server: connect to one, and you are connected to the cluster.",
            "small",
        )
    )
    return svg(776, 274, "Discovery through any bootstrap broker", "Metadata from one broker names all of them", parts)


def actors() -> str:
    """The actors pipeline."""
    parts: Lines = []
    boxes = {
        "actors": (24, 70, "PostgreSQL", "table actors"),
        "app": (24, 160, "application", "writes directly"),
        "topic": (208, 112, "topic actors", "records"),
        "enrich": (392, 112, "Spark", "enriches: joins"),
        "colleges": (392, 212, "PostgreSQL", "table colleges"),
        "enriched": (576, 112, "topic", "actors-enriched"),
        "table": (760, 66, "PostgreSQL", "actors_enriched"),
        "files": (760, 160, "Parquet", "files"),
    }
    for name, (x, y, first, second) in boxes.items():
        kind = "other" if name in ("topic", "enriched") else "box"
        on = " on" if kind == "other" else ""
        parts += [box(x, y, 140, 56, kind), text(x + 70, y + 24, first, "middle" + on)]
        parts.append(text(x + 70, y + 43, second, ("middle small" if not on else "middle on")))
    for a, b in (("actors", "topic"), ("app", "topic"), ("topic", "enrich"), ("enrich", "enriched"),
                 ("enriched", "table"), ("enriched", "files")):  # fmt: skip
        parts.append(arrow(boxes[a][0] + 140, boxes[a][1] + 28, boxes[b][0] - 2, boxes[b][1] + 28))
    parts.append(arrow(462, 210, 462, 170))
    parts += [
        text(196, 104, "connector", "small"),
        text(20, 300, "make demo-spark shows one actor at each hop.", "small"),
    ]
    return svg(924, 316, "The actors pipeline", "From a table through topics to a table and files", parts)


def keys() -> str:
    """One key, one partition."""
    parts: Lines = []
    records = (("alice", 1, 0), ("bert", 2, 1), ("alice", 3, 0), ("cleo", 4, 2), ("bert", 5, 1), ("alice", 6, 0))
    parts += [
        box(24, 56, 150, 150),
        text(99, 78, "producer", "middle"),
        text(99, 96, "murmur2(key) mod 3", "middle small"),
    ]
    for row, (key, number, _) in enumerate(records):
        parts.append(text(99, 116 + row * 15, f"{key}: {number}", "middle small"))
    for partition in range(3):
        y = 56 + partition * 54
        parts += [box(330, y, 420, 44), text(344, y + 27, f"partition {partition}"), arrow(176, 130, 326, y + 22)]
        own = [(key, number) for key, number, chosen in records if chosen == partition]
        for at, (key, number) in enumerate(own):
            x = 446 + at * 98
            parts += [box(x, y + 7, 90, 30, "cell", 2), text(x + 45, y + 27, f"{key}: {number}", "middle")]
    words = "The producer picks the partition. Records of one key are in one partition, in order."
    parts.append(text(20, 238, words, "small"))
    return svg(774, 254, "Keys and partitions", "Records of one key go to one partition", parts)


def groups() -> str:
    """Two groups share four partitions."""
    parts: Lines = []
    for at, (server, partitions) in enumerate((("server 1", (0, 3)), ("server 2", (1, 2)))):
        x = 130 + at * 260
        parts += [box(x, 52, 240, 76), text(x + 120, 72, server, "middle")]
        for row, partition in enumerate(partitions):
            parts += [
                box(x + 16 + row * 108, 82, 100, 34, "leader"),
                text(x + 66 + row * 108, 104, f"P{partition}", "middle on"),
            ]
    where = {0: 196, 3: 304, 1: 456, 2: 564}
    members = (
        ("C1", 60, (0, 3)),
        ("C2", 160, (1, 2)),
        ("C3", 330, (0,)),
        ("C4", 430, (3,)),
        ("C5", 530, (1,)),
        ("C6", 630, (2,)),
    )
    parts += [box(24, 206, 230, 84, "open"), text(40, 282, "group A: two each")]
    parts += [box(296, 206, 424, 84, "open"), text(312, 282, "group B: one each")]
    for name, x, owned in members:
        parts += [box(x, 218, 60, 40, "other"), text(x + 30, 243, name, "middle on")]
        parts += [arrow(where[partition], 118, x + 30, 216) for partition in owned]
    words = "Within a group each partition has one reader; which one, the assignor decides. Each group reads all."
    parts.append(text(20, 316, words, "small"))
    return svg(744, 332, "Two groups share four partitions", "Group A has two consumers, group B four", parts)


SCREEN = """\
    broker  address          pid  memory  state   leads  replicas
 ›  1       127.0.0.1:9092  7311   40 MB  ready      27        53  controller
    2       127.0.0.1:9093     -       -  killed      0        53
    3       127.0.0.1:9094  7313   41 MB  ready      26        53
 partition  broker 1   broker 2       broker 3   log start  high watermark  log end  records/s
 orders-0   ● leader   ○ out of sync  ● in sync          0             104      104          5
 orders-1   ● leader   ○ out of sync  ● in sync          0              98       98          5
 orders-2   ● in sync  ○ out of sync  ● leader           0              98       98          5
 __consumer_offsets: 50 partitions, 0 of them fully in sync
 broker 2 was killed: after an unclean shutdown a replica that is out of sync is not eligible. It
 cannot lead before it has caught up with a leader.
 group    member             partition  offset  lag
 kitchen  Stable, 2 members
          anna               orders-0      104    0
          anna               orders-1       98    0
          bert               orders-2       95    3
 broker 1: k kill -9  p pause  c continue  r restart  s stop  ·  1-9 choose a broker  ·  q quit
 clients: w write 10 records to orders  g start a consumer of group kitchen  x stop it"""
COLOURS = {"● leader": "red", "● in sync": "blue", "○ out of sync": "blue", "killed": "red"}


def _coloured(line: str) -> str:
    escaped = escape(line)
    for word, colour in COLOURS.items():
        escaped = escaped.replace(word, f'<tspan class="{colour}">{word}</tspan>')
    return escaped


def dev() -> str:
    """`ottla dev` after a kill."""
    lines = SCREEN.splitlines()
    parts: Lines = [box(16, 48, 828, 22 * len(lines) + 24)]
    for number, line in enumerate(lines):
        y = 76 + number * 22
        parts.append(f'<text class="mono" x="28" y="{y}" xml:space="preserve">{_coloured(line)}</text>')
    return svg(860, 22 * len(lines) + 90, "ottla dev, after broker 2 was killed", "The live view in a terminal", parts)


PICTURES: dict[str, Callable[[], str]] = {
    "log.svg": log,
    "four-brokers.svg": four_brokers,
    "failures.svg": failures,
    "keys.svg": keys,
    "groups.svg": groups,
    "discovery.svg": discovery,
    "actors.svg": actors,
    "dev-after-kill.svg": dev,
}


def main() -> int:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (DIRECTORY / name).write_text(draw())
        sys.stdout.write(f"wrote docs/pictures/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
