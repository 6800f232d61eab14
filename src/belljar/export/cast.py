"""A cell's commands and terminals as an asciicast (version 3) for asciinema's players."""

from __future__ import annotations

import errno
import shlex
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from belljar.events import Kind
from belljar.ledger.schema import BodyRef, Line
from belljar.units import printable

SIZE: Final = (100, 30)  # columns and rows until a command has a terminal of its own
_AT_END: Final = 1 << 40  # milliseconds: when the command ended
_ENDS: Final = (Kind.EXEC_COMPLETED, Kind.EXEC_TIMED_OUT, Kind.EXEC_FAILED)
_TIMED_OUT: Final = 124  # as timeout(1) and shells have it, as the codes below
_NOT_FOUND, _NOT_STARTED, _SIGNAL, _KILLED = 127, 126, 128, 137


def cast(lines: Iterable[Line], cell: str, read: Callable[[BodyRef], bytes]) -> Iterator[Any]:
    """Yield the header, then events for output, new sizes and exits.

    Each command begins with our prompt. Output is as it came: it may hold escape sequences, like
    any terminal recording.
    """
    last_ns, terminals, begun, size = 0, set[int](), dict[int, int](), SIZE
    for line in lines:
        if line.cell != cell or not line.kind.startswith("exec."):
            continue
        now_ns, op, data = int(line.mono_ns), line.data["op"], line.data
        wanted = (data.get("cols", size[0]), data.get("rows", size[1]))
        if not last_ns:
            last_ns, size = now_ns, wanted
            term = {"cols": size[0], "rows": size[1]}
            yield {"version": 3, "term": term, "title": f"cell {cell}"}

        def event(now_ns: int, code: str, data: str) -> list[Any]:
            nonlocal last_ns
            passed_s, last_ns = max(0, now_ns - last_ns) / 1e9, max(last_ns, now_ns)
            return [round(passed_s, 6), code, data]

        if wanted != size:
            size = wanted
            yield event(now_ns, "r", f"{size[0]}x{size[1]}")
        if line.kind is Kind.EXEC_STARTED:
            begun[op] = now_ns
            terminals |= {op} if data.get("pty") else set()
            yield event(now_ns, "o", f"$ {shlex.join(map(str, data['argv']))}\r\n")
        sizes = [(ms, (cols, rows)) for ms, cols, rows in data.get("size_times") or ()]
        pieces = [(ms, "r", f"{cols}x{rows}") for ms, (cols, rows) in sizes]
        for body in line.bodies:
            pieces += _pieces(line, body, read)
        for after_ms, code, text in sorted(pieces, key=lambda piece: piece[0]):
            at_ns = begun.get(op, now_ns) + after_ms * 1_000_000
            shown = text if op in terminals else text.replace("\n", "\r\n")
            yield event(min(at_ns, now_ns), code, shown)
        size = sizes[-1][1] if sizes else size
        if line.kind in _ENDS:
            status, why = _exit(line)
            if why:
                yield event(now_ns, "o", f"[{why}]\r\n")
            yield event(now_ns, "x", str(status))


def _exit(line: Line) -> tuple[int, str]:
    """Return the shell's exit status, and why there is no other."""
    data = line.data
    if line.kind is Kind.EXEC_TIMED_OUT:
        return _TIMED_OUT, "timed out"
    if line.kind is Kind.EXEC_FAILED:
        status = _NOT_FOUND if data.get("errno") == errno.ENOENT else _NOT_STARTED
        return status if data.get("errno") else _KILLED, printable(str(data["reason"]))
    return data["code"] + _SIGNAL * (data["status"] == "signalled"), ""


def _pieces(
    line: Line, body: BodyRef, read: Callable[[BodyRef], bytes]
) -> Iterator[tuple[int, str, str]]:
    """Yield a stream's parts: milliseconds since the start, asciicast's code, and text."""
    if body.name not in ("stdout", "stderr"):
        return
    times = line.data.get(f"{body.name}_times")
    content, begin = read(body), 0
    decoder = getincrementaldecoder("utf-8")("replace")
    for after_ms, end in times or ():
        yield after_ms, "o", decoder.decode(content[begin:end])
        begin = max(begin, end)
    last_ms = times[-1][0] if times else _AT_END
    yield last_ms, "o", decoder.decode(content[begin:], final=True)
