"""The VMM's monitor, as its client: one command at a time over an inherited socket.

The VMM may be compromised, so its answers are bounded, parsed strictly and awaited with a
deadline. The monitor has no path on the host.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import anyio

from belljar.errors import CellError
from belljar.units import printable

_MAX_LINE_BYTES: Final = 1 << 20
_MAX_EVENTS: Final = 256


class Qmp:
    """Owns the socket.

    Every method raises `CellError` when the VMM is gone, answers nonsense, refuses, or is late.
    """

    def __init__(self, sock: socket.socket, *, where: str) -> None:
        sock.setblocking(False)  # noqa: FBT003
        self._socket = sock
        self._where = where
        self._buffer = bytearray()
        self._events: deque[Mapping[str, Any]] = deque(maxlen=_MAX_EVENTS)

    async def greet(self, *, timeout_s: float = 20.0) -> None:
        """Wait for the monitor and enter command mode."""
        with anyio.move_on_after(timeout_s):
            while "QMP" not in await self._line():
                continue
            await self.execute("qmp_capabilities", timeout_s=timeout_s)
            return
        raise self._late("did not open its monitor")

    async def execute(
        self,
        command: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        fd: int | None = None,
        timeout_s: float = 20.0,
    ) -> Any:  # noqa: ANN401 - JSON
        """Run a command and return what it returns. `fd` is sent along."""
        message = (
            json.dumps(
                {"execute": command, **({"arguments": dict(arguments)} if arguments else {})}
            ).encode()
            + b"\n"
        )
        with anyio.move_on_after(timeout_s):
            await self._send(message, fd)
            while True:
                reply = await self._line()
                if "error" in reply:
                    raise CellError(
                        f"the VMM refused {command}: "
                        f"{printable(str(reply['error']), max_chars=300)}",
                        where=self._where,
                    )
                if "return" in reply:
                    return reply["return"]
                self._events.append(reply)
        raise self._late(f"did not answer {command}")

    async def wait_migrated(self, *, timeout_s: float) -> None:
        """Until the state has gone out or come in.

        The events capability of migration must be on.
        """
        with anyio.move_on_after(timeout_s):
            while True:
                event = self._events.popleft() if self._events else await self._line()
                data = event.get("data")
                status = (
                    data.get("status")
                    if event.get("event") == "MIGRATION" and isinstance(data, dict)
                    else None
                )
                if status == "completed":
                    return
                if status in ("failed", "cancelled"):
                    raise CellError(
                        f"the VMM could not move the device state: {status}", where=self._where
                    )
        raise self._late("did not finish moving the device state")

    def close(self) -> None:
        """Let go of the monitor."""
        self._socket.close()

    def _late(self, what: str) -> CellError:
        return CellError(f"the VMM {what} in time", where=self._where)

    async def _send(self, message: bytes, fd: int | None) -> None:
        """Commands are far smaller than a socket's buffer: they go out whole."""
        await anyio.wait_writable(self._socket)
        try:
            sent = socket.send_fds(self._socket, [message], [] if fd is None else [fd])
        except OSError as exc:
            raise CellError("the VMM has closed its monitor", where=self._where) from exc
        if sent != len(message):
            raise CellError("the VMM does not read its monitor", where=self._where)

    async def _line(self) -> dict[str, Any]:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise CellError("the VMM's monitor sent an endless line", where=self._where)
            await anyio.wait_readable(self._socket)
            try:
                chunk = self._socket.recv(65536)
            except BlockingIOError:
                continue
            except OSError:
                chunk = b""
            if not chunk:
                raise CellError("the VMM has closed its monitor", where=self._where)
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return self._parsed(line)

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise CellError(
                "the VMM's monitor sent something that is not JSON", where=self._where
            ) from exc
        if not isinstance(value, dict):
            raise CellError(
                "the VMM's monitor sent something that is not an object", where=self._where
            )
        return value
