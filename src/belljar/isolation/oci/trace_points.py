"""gVisor's trace points, as runsc sends them to a socket: what is to be sent, and what was said.

The sandbox's kernel says it, so the workload can't forge it, but names and paths in it are the
workload's: every message is bounded and decoded without trust. Pure.

Source: gVisor's `pkg/sentry/seccheck/sinks/remote/wire` and `points/*.proto` (Apache-2.0), of
which eleven fields are needed here.
"""

from __future__ import annotations

import posixpath
import re
import struct
from collections.abc import Iterator
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.isolation.touches import Operation

MAX_MESSAGE_BYTES: Final = 16 << 10
HELLO: Final = b"\x08\x01"
"""Both sides' first message: version 1."""
_HEADER: Final = struct.Struct("<HHI")
_OPEN: Final = 7
_READ: Final = 9
_O_PATH: Final = 0o10000000
_ROOTS: Final = re.compile(rb"(?:/proc/(?:self|thread-self|[0-9]+)(?:/task/[0-9]+)?/root(?=/|\Z))+")
_MAX_FIELDS: Final = 64
_CONTEXT: Final = ("group_id", "process_name")
_OPENS: Final = ("open", "openat", "creat")
_READS: Final = ("read", "pread64", "readv", "preadv", "preadv2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An open or a read that succeeded. `path`: as far as the text of the call says."""

    operation: Operation
    path: bytes
    process: bytes
    pid: int


def trace_config(endpoint: str) -> dict[str, Any]:
    """What runsc gets by `--pod-init-config`. A reader that is late costs a call half a millisecond
    at most; then the point is dropped, and counted."""
    points: list[dict[str, Any]] = []
    for call in _OPENS:
        context = [*_CONTEXT, "cwd"]
        optional = ["fd_path"] if call == "openat" else []
        points.append(
            {"name": f"syscall/{call}/exit", "optional_fields": optional, "context_fields": context}
        )
    for call in _READS:
        name = f"syscall/{call}/exit"
        points.append({"name": name, "optional_fields": ["fd_path"], "context_fields": [*_CONTEXT]})
    config = {"endpoint": endpoint, "retries": 3, "backoff": "50us", "backoff_max": "200us"}
    return {
        "trace_session": {
            "name": "Default",  # the only name that it takes
            "points": points,
            "sinks": [{"name": "remote", "config": config, "ignore_setup_error": True}],
        }
    }


def dropped(message: bytes) -> int:
    """How many points were dropped until this one, modulo 2^32."""
    return int(_HEADER.unpack_from(message)[2]) if len(message) >= _HEADER.size else 0


def read_point(message: bytes) -> Point | None:
    """What the message says; None: another point, a call that failed, or no message at all."""
    if len(message) < _HEADER.size:
        return None
    header_bytes, kind, _ = _HEADER.unpack_from(message)
    if kind not in (_OPEN, _READ) or header_bytes < _HEADER.size:
        return None
    try:
        fields = dict(_fields(message[header_bytes:]))
        context = dict(_fields(_bytes(fields, 1)))
        outcome = dict(_fields(_bytes(fields, 2)))
    except ValueError:
        return None
    value = _number(outcome, 1)
    result = value - (1 << 64) if value >> 63 else value
    if result < 0 or _number(outcome, 2):
        return None
    read_path = _bytes(fields, 5) if result else b""  # 0: the end of the file
    path = read_path if kind == _READ else _opened(fields, context)
    if not path:
        return None
    return Point(
        operation="read" if kind == _READ else "open",
        path=path,
        process=_bytes(context, 9),
        pid=_number(context, 4) & 0x7FFF_FFFF,
    )


def _opened(fields: dict[int, int | bytes], context: dict[int, int | bytes]) -> bytes:
    """The path that was opened, as text: of links only those of `/proc` to a root are followed."""
    name, base = _bytes(fields, 6), _bytes(fields, 5) or _bytes(context, 8)
    if _number(fields, 7) & _O_PATH or not (name or base):
        return b""
    path = posixpath.normpath(posixpath.join(b"/", base, name))
    roots = _ROOTS.match(path)
    return path if roots is None else path[roots.end() :] or b"/"


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and byte strings of one protobuf message. Raises `ValueError`."""
    at = 0
    for _ in range(_MAX_FIELDS):
        if at >= len(data):
            return
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif key & 7 == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("a field that is longer than its message")
            yield key >> 3, data[at : at + length]
            at += length
        else:
            at += {1: 8, 5: 4}.get(key & 7, len(data))
    raise ValueError("too many fields")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number that is cut")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ValueError("a number that is too long")


def _number(fields: dict[int, int | bytes], key: int) -> int:
    value = fields.get(key, 0)
    return value if isinstance(value, int) else 0


def _bytes(fields: dict[int, int | bytes], key: int) -> bytes:
    value = fields.get(key, b"")
    return value if isinstance(value, bytes) else b""
