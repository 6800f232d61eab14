"""The guest's serial console: a pipe that nobody pumps, read on demand and at the end, of which the
last bytes are kept.

A guest that writes more than the pipe holds waits for itself: the kernel's command line lets only
emergencies through, and the workload can't reach the device.
"""

from __future__ import annotations

import os
import re
from typing import Final

from belljar.capture import Capture
from belljar.isolation.jail import grow_pipe
from belljar.units import printable

MAX_CONSOLE_BYTES: Final = 64 << 10
_PIPE_BYTES: Final = 256 << 10
_PANIC: Final = re.compile(rb"Kernel panic - not syncing: ([^\r\n]{0,200})")


class Console:
    """Owns the reading end.

    `writer` is for the VMM; close it (`close_writer`) when the VMM has it.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        grow_pipe(self.writer, _PIPE_BYTES)
        self._kept = Capture(max_kept_bytes=MAX_CONSOLE_BYTES, keep="tail", hashed=False)
        self._open = True

    def read(self) -> bytes:
        """The last 64 KiB that the guest wrote. The guest's word."""
        while self._open:
            try:
                chunk = os.read(self._reader, _PIPE_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                break
            self._kept.feed(chunk)
        return self._kept.kept

    def panic(self) -> str:
        """What the guest's kernel panicked of, or empty."""
        match = _PANIC.search(self.read())
        return printable(match[1]) if match else ""

    def close_writer(self) -> None:
        """This process's copy of the VMM's end."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        """Read the rest, and close it; `read` still answers."""
        if self._open:
            self.read()
            self._open = False
            self.close_writer()
            os.close(self._reader)
