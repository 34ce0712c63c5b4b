"""When answers leave.

Waking a process that sleeps costs more than sending to one that is awake, and the clients of many connections are often
one process. So of all that is answered in one turn of the loop the first answer goes out at once, and the others
together, when everything that has arrived was served.
"""

from __future__ import annotations

import asyncio

from ottla.runtime import Buffer, Runtime

LATE_BYTES_MAX = 16 * 1024
"""Larger answers are not kept."""


class WriteCoalescing:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._late: dict[asyncio.Transport, list[Buffer]] | None = None  # None: nothing was sent in this turn

    def send(self, transport: asyncio.Transport, answers: list[Buffer]) -> None:
        """Now, or at the end of the turn; always behind what was sent there before."""
        late = self._late
        if late is None:
            self._late = {}
            self._runtime.call_soon(self._end)
        elif (kept := late.pop(transport, None)) is not None:
            answers = kept + answers
        elif len(answers) == 1 and len(answers[0]) <= LATE_BYTES_MAX:
            late[transport] = [answers[0]]
            return
        if len(answers) == 1:
            transport.write(answers[0])
        else:
            transport.writelines(answers)

    def flush(self, transport: asyncio.Transport) -> None:
        """The connection is about to be closed."""
        kept = self._late.pop(transport, None) if self._late else None
        if kept is not None and not transport.is_closing():
            transport.writelines(kept)

    def _end(self) -> None:
        late, self._late = self._late or {}, None
        for transport, kept in late.items():
            if not transport.is_closing():
                transport.write(kept[0])
