"""Progress of a streaming query, committed as offsets of a consumer group by the driver after every batch.

The option `groupId` of the source does the same with no code, a trigger later: at the next trigger, or at the next
start if there is none. To have exact numbers also after a stop between triggers, add this listener:

    spark.streams.addListener(GroupProgress("localhost:9092", "kitchen", query="orders"))
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from ottla.client.errors import ClientError
from ottla.spark import clients
from ottla.spark.offset_ranges import Offsets, from_json

log = logging.getLogger(__name__)


def mirror(kafka: Mapping[str, str], group_id: str, done: Offsets) -> bool:
    """Commit the progress as offsets of the group. That it cannot is no reason for the query to fail."""
    try:
        with clients.admin(kafka) as admin:
            admin.alter_group_offsets(group_id, done)
        return True
    except ClientError as error:
        log.warning("the progress of the query is not visible in group %s: %s", group_id, error)
        return False


class GroupProgress(StreamingQueryListener):
    """Of one query, by its name, or of all that read this cluster."""

    def __init__(self, bootstrap_servers: str, group_id: str, *, query: str | None = None) -> None:
        self._kafka = {"bootstrap.servers": bootstrap_servers}
        self._group_id = group_id
        self._query = query

    def onQueryStarted(self, event: Any) -> None:
        """Nothing has been read yet."""

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        if self._query is not None and progress.name != self._query:
            return
        done: Offsets = {}
        for source in progress.sources:
            try:
                done |= from_json(json.loads(source.endOffset or "{}"))
            except (TypeError, ValueError, AttributeError):
                continue  # a source of another kind
        if done:
            mirror(self._kafka, self._group_id, done)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: Any) -> None:
        """The last progress has reported all that was done."""
