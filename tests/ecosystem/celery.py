"""Celery with Kafka as its broker (kombu's transport on confluent-kafka): every task is run once, in order."""

from __future__ import annotations

from pathlib import Path

from tests.ecosystem import needs
from tests.ecosystem.ring import Ring, same

TITLE = "Celery"
TASKS = 500


def prepare() -> str:
    return f"{needs.package_version(_python(), 'celery')}, kombu {needs.package_version(_python(), 'kombu')}"


def _python() -> Path:
    return needs.environment("celery", "celery", "kombu[confluentkafka]")


def run(ring: Ring) -> str:
    done = ring.directory / "done.txt"
    done.touch()
    ring.python("celery-send", _python(), "celery_job.py", "send", str(TASKS), str(done)).finish()
    ring.say(f"{TASKS} tasks are in the queue")
    worker = ring.python("celery-worker", _python(), "celery_job.py", "work", "0", str(done))
    ring.until(lambda: len(done.read_text().splitlines()) >= TASKS, f"{TASKS} tasks done")
    ring.caught_up("celery-ring-consumer-group", "celery-ring")
    worker.stop()
    same("tasks", [int(line) for line in done.read_text().splitlines()], range(TASKS))
    return f"{TASKS} tasks, each run once and in order"
