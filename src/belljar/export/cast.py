"""Makes an asciicast (version 3) of a cell's commands and terminals."""

from __future__ import annotations

import shlex
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from belljar.events import Kind
from belljar.ledger.schema import BodyRef, Line
from belljar.units import printable

SIZE: Final = (100, 30)  # columns and rows where the first command has no terminal
_AT_END: Final = 1 << 40  # milliseconds: when the command ended
_ENDS: Final = (Kind.EXEC_COMPLETED, Kind.EXEC_TIMED_OUT, Kind.EXEC_FAILED)
_TIMED_OUT, _SIGNAL, _NO_CODE = 124, 128, 1  # the former as timeout(1) and shells have it


def cast(lines: Iterable[Line], cell: str, read: Callable[[BodyRef], bytes]) -> Iterator[Any]:
    """Yield the header, then events for output and exits.

    Output is as it came: it may hold escape sequences.
    """
    last_ns, terminals, begun = 0, set[int](), dict[int, int]()
    for line in lines:
        if line.cell != cell or not line.kind.startswith("exec."):
            continue
        now_ns, op, data = int(line.mono_ns), line.data["op"], line.data
        if not last_ns:
            last_ns = now_ns
            term = {"cols": data.get("cols", SIZE[0]), "rows": data.get("rows", SIZE[1])}
            yield {"version": 3, "term": term, "title": f"cell {cell}"}
        pieces = [piece for body in line.bodies for piece in _pieces(line, body, read)]
        if line.kind is Kind.EXEC_STARTED:
            begun[op] = now_ns
            terminals |= {op} if data.get("pty") else set()
            pieces.append((0, "o", f"$ {shlex.join(map(str, data['argv']))}\r\n"))
        if line.kind in _ENDS:
            pieces += _end(line)
        for after_ms, code, text in sorted(pieces, key=lambda piece: piece[0]):
            at_ns = min(begun.get(op, now_ns) + after_ms * 1_000_000, now_ns)
            passed_s, last_ns = max(0, at_ns - last_ns) / 1e9, max(last_ns, at_ns)
            shown = text if op in terminals else text.replace("\n", "\r\n")
            yield [round(passed_s, 6), code, shown]


def _end(line: Line) -> Iterator[tuple[int, str, str]]:
    data = line.data
    if line.kind is Kind.EXEC_COMPLETED:
        status = data["code"] + _SIGNAL * (data["status"] == "signalled")
    else:
        status = _TIMED_OUT if line.kind is Kind.EXEC_TIMED_OUT else _NO_CODE
        why = printable(str(data.get("reason", "timed out")))
        yield _AT_END, "o", f"[{why}]\r\n"
    yield _AT_END, "x", str(status)


def _pieces(
    line: Line, body: BodyRef, read: Callable[[BodyRef], bytes]
) -> Iterator[tuple[int, str, str]]:
    if body.name not in ("stdout", "stderr"):
        return
    times = line.data.get(f"{body.name}_times")
    content, begin, after_ms = read(body), 0, _AT_END
    decoder = getincrementaldecoder("utf-8")("replace")
    for after_ms, end in times or ():
        yield after_ms, "o", decoder.decode(content[begin:end])
        begin = max(begin, end)
    yield after_ms, "o", decoder.decode(content[begin:], final=True)
