"""Celery on kombu's Kafka transport: `send` puts tasks into the queue, `work` is a worker that notes what it did."""

from __future__ import annotations

import sys
from pathlib import Path

from celery import Celery

BOOTSTRAP, WHAT, COUNT, FILE = sys.argv[1:]
app = Celery("ring", broker=";".join(f"confluentkafka://{each}" for each in BOOTSTRAP.split(",")))
app.conf.update(
    task_default_queue="celery-ring",
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"num_partitions": 1, "replication_factor": 3, "wait_time_seconds": 1},
)


@app.task(name="note")
def note(number: int) -> None:
    with Path(FILE).open("a") as done:
        done.write(f"{number}\n")


if __name__ == "__main__":
    if WHAT == "send":
        for each in range(int(COUNT)):
            note.delay(each)
    else:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        app.worker_main(["worker", "--pool=solo", "--loglevel=INFO", *quiet])
