"""Fetch sessions (KIP-227), the side that fetches: what the broker knows, and what the next request must name.

The first request names every partition and opens a session; later ones name only what changed, and what is to be
forgotten. Both sides count the requests: when they disagree, or the broker has forgotten the session, another one is
opened. A broker that has no room for sessions answers with id 0, and is named every partition every time.

Consumers and replica fetchers share this. It looks at no partition by itself: its owner says which may have changed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from ottla.errors import ErrorCode

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
OUTSIDE: Final = -1
"""The epoch of a request that belongs to no session."""
EPOCH_MAX: Final = 2**31 - 1

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.none,
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)
"""After these a whole fetch is simply asked for again, in a new session."""

Key = TypeVar("Key", bound=Hashable)
Wanted = TypeVar("Wanted")


class FetchSessionHandler(Generic[Key, Wanted]):
    """What one broker knows: of each partition by its key, what is wanted of it."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH if enabled else OUTSIDE
        self.known: dict[Key, Wanted] = {}
        self._resend: set[Key] = set()
        self._forgotten: dict[Key, Wanted] = {}

    def update(self, key: Key, wanted: Wanted) -> bool:
        """The broker shall know this. Whether the next request has to name it for that."""
        if self.known.get(key) == wanted and key not in self._resend:
            return False
        self.known[key] = wanted
        self._resend.discard(key)
        self._forgotten.pop(key, None)
        return True

    def resend(self, key: Key) -> None:
        """What the broker answered for it was not used: it must not believe that we have it."""
        self._resend.add(key)

    def forget(self, key: Key) -> None:
        """Nothing is wanted of it any more."""
        wanted = self.known.pop(key, None)
        if wanted is not None:
            self._resend.discard(key)
            self._forgotten[key] = wanted

    def next(self) -> tuple[int, int, dict[Key, Wanted]]:
        """For the next request: session id, session epoch, and what it makes the broker forget."""
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
        """The next request opens a session, and the broker knows of no other."""
        self.id = NO_SESSION
        self.restart()

    def restart(self) -> None:
        """The next request opens another session, and closes this one by naming it. Also after a request failed: nobody
        knows whether the broker has counted it."""
        if self.epoch != OUTSIDE:
            self.epoch = FIRST_EPOCH
        self.known.clear()
        self._resend.clear()
        self._forgotten.clear()
