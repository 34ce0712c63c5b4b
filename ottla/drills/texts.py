"""Course texts, and the sentence that a drill quotes from one."""

from __future__ import annotations

from typing import Final, NamedTuple

TEXTS: Final = {
    1: "lecture on producers, consumers, guarantees and failures",
    2: "lecture on Kafka as a distributed system",
    3: "lecture that introduces Kafka",
    4: "slides on producers and consumers, with lab 1",
    5: "notes from topics to ZooKeeper",
}


class Quote(NamedTuple):
    """A sentence of a text. `requirements`: its numbers in docs/requirements.md."""

    text: int
    sentence: str
    requirements: tuple[int, ...]

    @property
    def source(self) -> str:
        numbers = ", ".join(f"S{number}" for number in self.requirements)
        return f"Text {self.text} ({TEXTS[self.text]}), {numbers}"
