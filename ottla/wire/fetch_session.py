"""Fetch session handler (KIP-227), the fetching side: which partitions the next request has to name.

The first request names every partition and opens a session; later ones name only partitions that changed or are
removed. Both sides count the requests: when the epochs differ, or the broker has evicted the session, a new one is
opened. A broker without a free session slot answers with session id 0, and is sent every partition every time.

Used by consumers and replica fetchers. Its owner reports which partitions may have changed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from ottla.errors import ErrorCode

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
OUTSIDE: Final = -1
"""The epoch of a request outside a session."""
EPOCH_MAX: Final = 2**31 - 1

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.none,
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)
"""After these errors a full fetch in a new session follows."""

Key = TypeVar("Key", bound=Hashable)
Wanted = TypeVar("Wanted")


class FetchSessionHandler(Generic[Key, Wanted]):
    """The session with one broker: for each partition, by its key, what was last requested."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH if enabled else OUTSIDE
        self.known: dict[Key, Wanted] = {}
        self._resend: set[Key] = set()
        self._forgotten: dict[Key, Wanted] = {}

    def update(self, key: Key, wanted: Wanted) -> bool:
        """Request this. Whether the next request has to name the partition for that."""
        if self.known.get(key) == wanted and key not in self._resend:
            return False
        self.known[key] = wanted
        self._resend.discard(key)
        self._forgotten.pop(key, None)
        return True

    def resend(self, key: Key) -> None:
        """The last response for it was not used: name it again."""
        self._resend.add(key)

    def forget(self, key: Key) -> None:
        """Remove it from the session."""
        wanted = self.known.pop(key, None)
        if wanted is not None:
            self._resend.discard(key)
            self._forgotten[key] = wanted

    def next(self) -> tuple[int, int, dict[Key, Wanted]]:
        """For the next request: session id, session epoch, and the partitions to forget."""
        forgotten, self._forgotten = self._forgotten, {}
        session = self.id, self.epoch, forgotten
        if self.epoch != OUTSIDE:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1
        return session

    def answered(self, code: ErrorCode, session_id: int) -> None:
        if self.epoch == OUTSIDE:
            return
        if code is not ErrorCode.none and code is not ErrorCode.fetch_session_id_not_found:
            self.restart()
        elif code is not ErrorCode.none or session_id == NO_SESSION:
            self.begin()
        else:
            self.id = session_id

    def begin(self) -> None:
        """The next request opens a session; the broker has none of ours."""
        self.id = NO_SESSION
        self.restart()

    def restart(self) -> None:
        """The next request opens another session, and closes this one. Also after a failed request, which the broker
        may have counted or not."""
        if self.epoch != OUTSIDE:
            self.epoch = FIRST_EPOCH
        self.known.clear()
        self._resend.clear()
        self._forgotten.clear()
