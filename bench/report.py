"""Report of a benchmark: the page and the plot, written from its results."""

from __future__ import annotations

from pathlib import Path

from bench import plot
from bench.cell import Better, Cell, Metric
from bench.cells import BATCH_BYTES, CELLS
from bench.compare import Comparison, Spread, compare, number, within
from bench.load import IN_FLIGHT_MAX
from bench.protocol import WALL, Results

OURS, PEER, SMALL_PEER = "ottla", "kafka", "kafka-256m"
TITLES = {OURS: "Ottla", PEER: "Kafka", SMALL_PEER: "Kafka, 256 MB heap"}
RATIO = (
    "Ottla's median divided by Kafka's. A tie: the ranges of the runs overlap; at the target: the range of "
    "Ottla's runs overlaps the target's multiple of Kafka's. Missed ×2: half as good as the target asks for."
)
REMARKS = Path(__file__).parent / "remarks.md"


def spread(values: list[float]) -> str:
    """`median (low–high)`, or a dash if nothing was measured."""
    found = Spread.of(values)
    if found is None:
        return "—"
    return f"{number(found.median)} ({number(found.low)}–{number(found.high)})"


def _compared(results: Results, cell: Cell, metric: Metric, peer: str) -> Comparison | None:
    ours, theirs = (results.of(cell.name, metric.key, name) for name in (OURS, peer))
    return compare(metric, ours, theirs)


def _ratio(results: Results, cell: Cell, metric: Metric, peer: str) -> str:
    found = _compared(results, cell, metric, peer)
    if found is None:
        return "—"
    return f"{found.ratio:.2f}, tie" if found.tie else f"{found.ratio:.2f}"


def _target(metric: Metric) -> str:
    sign = "≥" if metric.better is Better.HIGHER else "≤"
    return f"{sign} {metric.target}" if metric.target is not None else ""


def _rows(results: Results, *, targeted: bool) -> list[tuple[Cell, Metric]]:
    return [
        (cell, metric)
        for cell in CELLS
        for metric in cell.metrics
        if (metric.target is not None) is targeted and metric.key in results.values.get(cell.name, {})
    ]


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def ratios(results: Results) -> list[str]:
    """Numbers with a target, against it."""
    rows = []
    for cell, metric in _rows(results, targeted=True):
        compared = [_ratio(results, cell, metric, peer) for peer in (PEER, SMALL_PEER)]
        found = _compared(results, cell, metric, PEER)
        verdict = found.verdict() if found else "not measured"
        rows.append([f"`{cell.name}`", metric.label, *compared, _target(metric), verdict])
    return _table(["Cell", "Measure", "to Kafka", "to Kafka, 256 MB", "Target", "Verdict"], rows)


def limits(results: Results) -> list[str]:
    """Numbers with a limit, against it."""
    rows = []
    for cell, metric in _rows(results, targeted=False):
        if metric.limit is None:
            continue
        ours, theirs = (results.of(cell.name, metric.key, name) for name in (OURS, PEER))
        sign = "≥" if metric.better is Better.HIGHER else "≤"
        limit, verdict = f"{sign} {metric.limit:g} {metric.unit}", within(metric.limit, ours, metric.better)
        rows.append([f"`{cell.name}`", metric.label, spread(ours), spread(theirs), limit, verdict])
    return _table(["Cell", "Measure", "Ottla", "Kafka", "Limit", "Verdict"], rows)


def absolutes(results: Results) -> list[str]:
    """All numbers of all peers: median, lowest and highest run."""
    peers = [name for name in TITLES if name in results.versions]
    rows = []
    for targeted in (True, False):
        for cell, metric in _rows(results, targeted=targeted):
            values = [spread(results.of(cell.name, metric.key, name)) for name in peers]
            ratio = _ratio(results, cell, metric, PEER)
            rows.append([f"`{cell.name}`", f"{metric.label}, {metric.unit}", *values, ratio])
    rows.sort(key=lambda row: [f"`{cell.name}`" for cell in CELLS].index(row[0]))
    return _table(["Cell", "Measure", *(TITLES[name] for name in peers), "Ratio"], rows)


def generator_share(results: Results) -> str:
    """The cell in which the load generator used the largest share of the cores."""
    worst = max(
        (
            (max(values), cell, metric.removesuffix("_generator_cores").removesuffix("generator_cores"), peer)
            for cell, metrics in results.values.items()
            for metric, peers in metrics.items()
            if metric.endswith("generator_cores")
            for peer, values in peers.items()
        ),
        default=None,
    )
    if worst is None:
        return "- No load was generated."
    cores, cell, part, peer = worst
    where = f"`{cell}` ({part})" if part else f"`{cell}`"
    return f"- The load generator took at most {cores:.2f} cores: in {where}, against {TITLES[peer]}."


def duration(results: Results) -> str:
    """Duration of each cell, for measuring one again."""
    took = {name: sum(map(sum, metrics.get(WALL, {}).values())) for name, metrics in results.values.items()}
    said = ", ".join(f"`{name}` {seconds:.0f}" for name, seconds in took.items() if seconds)
    if not said:
        return "- How long the cells took was not measured."
    return f"- Seconds that each cell took, all runs and brokers: {said}; {sum(took.values()) / 60:.0f} minutes in all."


def method(results: Results) -> list[str]:
    """Method of the measurement, for readers who check or repeat it."""
    settings = results.settings
    saturated = (
        f"Saturated cells last {settings.seconds:g} s a part. Four processes produce, each to its own "
        f"partition, with {IN_FLIGHT_MAX} requests in flight, one batch of about {BATCH_BYTES // 1000} kB in "
        "each, uncompressed, acks=all. Four processes consume, each its own partition, by Fetch requests for "
        "up to 1 MiB. Alone, they read what was just produced, from the page cache, and begin again at its "
        "end; beside the producers, they follow a new topic. Throughput counts record values only; MB and GB "
        "are powers of ten."
    )
    order = (
        f"Each broker was warmed for {settings.warm_seconds:g} s with the same cells. In each round every "
        "cell went over all brokers in turn (A/B/A/B), one on the cores, the others frozen. CPU time is user "
        "and system time of all of the broker's threads."
    )
    does = [f"- `{cell.name}`: {cell.does}" for cell in CELLS if cell.name in results.values]
    return ["## What each cell does", "", *does, "", saturated, "", order]


def page(results: Results) -> str:
    """The Markdown page."""
    versions = ", ".join(f"{TITLES[name]} {version}" for name, version in results.versions.items())
    machine = "; ".join(f"{name.lower()}: {fact}" for name, fact in results.machine.items())
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench` on {results.at}, all brokers on the same machine in the same run.",
        "",
        f"- Brokers: {versions}",
        f"- Machine: {machine}",
        "",
        "## Ratios to Apache Kafka",
        "",
        RATIO,
        "",
        *ratios(results),
        "",
        "![Ratios to Apache Kafka](benchmarks.svg)",
        "",
        "## Limits",
        "",
        "What Ottla must keep to whatever Kafka does. Median, lowest and highest run.",
        "",
        *limits(results),
        "",
        "## Numbers",
        "",
        f"Median of {results.settings.runs} runs, lowest and highest in parentheses.",
        "",
        *absolutes(results),
        "",
        *method(results),
        "",
        "## Remarks",
        "",
        generator_share(results),
        duration(results),
        REMARKS.read_text().rstrip(),
        *(f"- {note}" for note in results.notes),
        "",
    ]
    return "\n".join(lines)


def picture(results: Results) -> str:
    """The SVG beside the page."""
    bars = []
    for cell, metric in _rows(results, targeted=True):
        found = _compared(results, cell, metric, PEER)
        if found is None:
            continue
        higher = metric.better is Better.HIGHER
        gain = found.ratio if higher else 1 / found.ratio
        target = metric.target if higher or metric.target is None else 1 / metric.target
        bars.append(plot.Bar(f"{cell.name}: {metric.label.lower()}", gain, target, found.tie))
    return plot.draw("Ottla against Apache Kafka, two cores", bars)


def write(results: Results, directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    written = [directory / "benchmarks.md", directory / "benchmarks.svg"]
    written[0].write_text(page(results))
    written[1].write_text(picture(results))
    return written
