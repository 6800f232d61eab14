"""Whether anybody opened, read, changed or moved one file of the host: the kernel's own word,
through `inotify`.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Final

_NAMES: Final = {
    0x001: "read",
    0x002: "changed",
    0x004: "its attributes changed",
    0x020: "opened",
    0x400: "removed",
    0x800: "moved",
}
_EVERYTHING: Final = 0xFFF
_HEAD: Final = struct.Struct("iIII")


class FileWatch:
    """Watches one file from now on. Raises `OSError` when the host allows no more watches."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _checked(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        try:
            _checked(libc.inotify_add_watch(self._fd, os.fsencode(path), _EVERYTHING))
        except OSError:
            os.close(self._fd)
            raise

    def __enter__(self) -> FileWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def seen(self) -> list[str]:
        """What happened since the last call, in words, each once."""
        try:
            data = os.read(self._fd, 64 << 10)
        except BlockingIOError:
            return []
        mask = offset = 0
        while offset + _HEAD.size <= len(data):
            _, bits, _, name_bytes = _HEAD.unpack_from(data, offset)
            mask |= bits
            offset += _HEAD.size + name_bytes
        return [name for bit, name in _NAMES.items() if mask & bit] or [f"events {mask:#x}"]


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
