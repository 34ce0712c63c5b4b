"""Fencing: transactions that a failed batch has left open are aborted before the next run writes.

`read_committed` consumers cannot read beyond an open transaction until its timeout, fifteen minutes. A batch that is
run again fences the transactional ids that its tasks use. Those that it does not use, because there are fewer tasks
this time, and those of a batch that is long in coming, are fenced here:

- in the driver, when Spark pickles the writer to send it to the tasks of a batch: no task of this query writes at that
  moment. txnAppId, or the checkpoint's file `metadata`, identifies the query;
- where neither can be read (a checkpoint that is not on this machine), with the commit of the batch: those ids that its
  tasks did not use.

What is fenced was never decided on, or is written again by the batch that is run again: nothing that counts is lost.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ottla.blocking import Admin
from ottla.client.errors import ClientError
from ottla.errors import ErrorCode
from ottla.spark import clients
from ottla.spark.options import WriteOptions, local_path

PREFIX: Final = "ottla-sink-"
DECISIONS_PREFIX: Final = "ottla-decisions-"
"""Another one, so that no app's decisions are called like a task of another app: orders-1 like task 1 of orders."""
ONGOING: Final = "Ongoing"
FENCING_MAX: Final = 8
"""So many are fenced at a time."""
log = logging.getLogger(__name__)

_checked: dict[str, int] = {}
"""By checkpoint: its newest batch at the last check for open transactions in this process."""


def fence_left_over(kafka: Mapping[str, str], app_id: str, tasks: int = 0) -> list[str]:
    """Abort the open transactions of this writer's tasks from this number on, and of its decisions if from 0. What
    cannot be fenced now is when its time is over; that is no reason to fail."""
    try:
        with clients.admin(kafka) as admin:
            names = [each.transactional_id for each in admin.list_transactions([ONGOING])]
            left = sorted(name for name in names if _is_left_over(name, app_id, tasks))
            with ThreadPoolExecutor(FENCING_MAX) as pool:
                list(pool.map(lambda name: _fence(admin, name), left))
    except ClientError as error:
        log.warning("transactions that an earlier run of %s left open could not be looked for: %s", app_id, error)
        return []
    if left:
        log.warning("aborted what an earlier run of %s left open: %s", app_id, ", ".join(left))
    return left


def _is_left_over(name: str, app_id: str, tasks: int) -> bool:
    if name == DECISIONS_PREFIX + app_id:
        return tasks == 0
    task = name.removeprefix(f"{PREFIX}{app_id}-")
    return task != name and task.isdecimal() and int(task) >= tasks


def _fence(admin: Admin, name: str) -> None:
    try:
        admin.fence_producer(name)
    except ClientError as error:
        if error.code is not ErrorCode.transactional_id_not_found:
            raise


def app_id_before_tasks(options: WriteOptions) -> str | None:
    """The writer, as far as it is known before a task runs."""
    if options.app_id is not None or options.checkpoint is None:
        return options.app_id
    path = local_path(options.checkpoint)
    if path is None:
        return None
    try:
        parsed = json.loads((path / "metadata").read_text())
        return str(parsed["id"])
    except (OSError, ValueError, KeyError):
        return None


def fence_before_tasks(options: WriteOptions) -> None:
    """Of a batch that is about to be written. Batches that follow one another without trouble leave nothing open."""
    app_id = app_id_before_tasks(options)
    if app_id is None or _is_next_batch(options.checkpoint):
        return
    fence_left_over(options.kafka, app_id)


def _is_next_batch(checkpoint: str | None) -> bool:
    """Whether this process looked when the batch before this one was about to be written, which was committed then."""
    path = None if checkpoint is None else local_path(checkpoint)
    newest = None if path is None else _newest(path / "offsets")
    if path is None or newest is None:
        return False
    before, _checked[str(path)] = _checked.get(str(path)), newest
    return before is not None and newest == before + 1 and (path / "commits" / str(before)).exists()


def _newest(folder: Path) -> int | None:
    try:
        return max((int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()), default=None)
    except OSError:
        return None
