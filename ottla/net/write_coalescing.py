"""Write coalescing: the responses of one loop iteration leave together, one write per connection.

Waking a sleeping process costs more than sending to one that is awake, and many connections often belong to one client
process. So the first response of a loop iteration is written at once, and the others when everything that has arrived
is served.
"""

from __future__ import annotations

import asyncio

from ottla.runtime import Buffer, Runtime

LATE_BYTES_MAX = 16 * 1024
"""Larger responses are written at once."""


class WriteCoalescing:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._late: dict[asyncio.Transport, list[Buffer]] | None = None  # None: nothing was written in this iteration

    def send(self, transport: asyncio.Transport, responses: list[Buffer]) -> None:
        """Write now, or at the end of the iteration; always behind what was sent on this connection before."""
        late = self._late
        if late is None:
            self._late = {}
            self._runtime.call_soon(self._end)
        elif (waiting := late.pop(transport, None)) is not None:
            responses = waiting + responses
        elif len(responses) == 1 and len(responses[0]) <= LATE_BYTES_MAX:
            late[transport] = [responses[0]]
            return
        if len(responses) == 1:
            transport.write(responses[0])
        else:
            transport.writelines(responses)

    def flush(self, transport: asyncio.Transport) -> None:
        """The connection is about to be closed."""
        waiting = self._late.pop(transport, None) if self._late else None
        if waiting is not None and not transport.is_closing():
            transport.writelines(waiting)

    def _end(self) -> None:
        late, self._late = self._late or {}, None
        for transport, waiting in late.items():
            if not transport.is_closing():
                transport.write(waiting[0])
