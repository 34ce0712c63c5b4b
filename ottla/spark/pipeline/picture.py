"""Picture of a pipeline: its data flow as text and as SVG. No Spark."""

from __future__ import annotations

from html import escape
from typing import Final

from ottla.spark.pipeline import graph
from ottla.spark.pipeline.document import Pipeline

WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 200, 46, 90, 22, 24
COLOURS: Final = {"source": "#dbeafe", "batch": "#e5e7eb", "transform": "#fef9c3", "sink": "#dcfce7"}


def edges(pipeline: Pipeline) -> list[tuple[str, str]]:
    found = [(each, name) for name, made in pipeline.transforms.items() for each in graph.reads(made.sql)]
    return found + [(sink.origin, name) for name, sink in pipeline.sinks.items()]


def kind(pipeline: Pipeline, name: str) -> tuple[str, str]:
    if name in pipeline.sources:
        source = pipeline.sources[name]
        return ("batch" if source.batch else "source"), source.format
    if name in pipeline.sinks:
        sink = pipeline.sinks[name]
        return "sink", sink.options.get("topic") or sink.options.get("table") or sink.options.get("path") or sink.format
    return "transform", "SQL"


def text(pipeline: Pipeline) -> str:
    lines = []
    for name in graph.ordered_sinks(pipeline):
        sink = pipeline.sinks[name]
        steps = graph.ordered_transforms(pipeline, sink.origin)
        origins = " + ".join(f"{each} ({kind(pipeline, each)[1]})" for each in graph.origins(pipeline, sink.origin))
        lines.append(f"{name}: {' → '.join([origins, *steps, f'{sink.format} {kind(pipeline, name)[1]}'])}")
        lines.append(f"    {pipeline.guarantee}, checkpoint {pipeline.checkpoint(name)}")
    return "\n".join(lines)


def columns(pipeline: Pipeline) -> list[list[str]]:
    """Names from left to right: each to the right of its inputs."""
    names = [*pipeline.sources, *pipeline.transforms, *pipeline.sinks]
    rank = dict.fromkeys(names, 0)
    for _ in names:
        for start, end in edges(pipeline):
            rank[end] = max(rank[end], rank[start] + 1)
    return [[name for name in names if rank[name] == each] for each in range(max(rank.values(), default=0) + 1)]


def svg(pipeline: Pipeline) -> str:
    ranked = columns(pipeline)
    corners = {
        name: (MARGIN + x * (WIDTH + ACROSS), MARGIN + y * (HEIGHT + DOWN))
        for x, names in enumerate(ranked)
        for y, name in enumerate(names)
    }
    width = 2 * MARGIN + len(ranked) * (WIDTH + ACROSS) - ACROSS
    height = 2 * MARGIN + max(len(names) for names in ranked) * (HEIGHT + DOWN) - DOWN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<style>text { font: 13px sans-serif }</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">',
        '<path d="M0 0L8 4L0 8z" fill="#64748b"/></marker></defs>',
    ]
    for start, end in edges(pipeline):
        (x1, y1), (x2, y2) = corners[start], corners[end]
        x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
        bend = (x1 + x2) // 2
        path = f"M{x1} {y1}C{bend} {y1} {bend} {y2} {x2} {y2}"
        parts.append(f'<path d="{path}" fill="none" stroke="#64748b" marker-end="url(#tip)"/>')
    for name, (x, y) in corners.items():
        what, detail = kind(pipeline, name)
        shown = detail if len(detail) <= 28 else "…" + detail[-27:]
        parts.append(
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{COLOURS[what]}" stroke="#475569"/>'
            f'<text x="{x + 10}" y="{y + 19}" font-weight="bold">{escape(name)}</text>'
            f'<text x="{x + 10}" y="{y + 36}" fill="#475569">{escape(shown)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
