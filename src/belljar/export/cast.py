"""A cell's commands and terminals as an asciicast (version 3), for asciinema's players."""

from __future__ import annotations

import shlex
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from belljar.events import Kind
from belljar.ledger import Line
from belljar.ledger.schema import BodyRef

COLUMNS: Final = 100
ROWS: Final = 30
_AT_END: Final = 1 << 40  # milliseconds: when the command ended
_ENDS: Final = (Kind.EXEC_COMPLETED, Kind.EXEC_TIMED_OUT, Kind.EXEC_FAILED)


def cast(lines: Iterable[Line], cell: str, read: Callable[[BodyRef], bytes]) -> Iterator[Any]:
    """Yield the header, then an event for each piece of output and each exit.

    Each command begins with a prompt of ours. Output is what was kept, as it came: it may hold
    escape sequences, as any terminal recording does. What was typed in a terminal is there if the
    policy has `keystrokes: true`.
    """
    last_ns, terminals, begun = 0, set[int](), dict[int, int]()
    for line in lines:
        if line.cell != cell or not line.kind.startswith("exec."):
            continue
        now_ns, op = int(line.mono_ns), line.data["op"]
        if not last_ns:
            last_ns = now_ns
            yield {"version": 3, "term": {"cols": COLUMNS, "rows": ROWS}, "title": f"cell {cell}"}

        def event(now_ns: int, code: str, data: str) -> list[Any]:
            nonlocal last_ns
            passed_s, last_ns = max(0, now_ns - last_ns) / 1e9, max(last_ns, now_ns)
            return [round(passed_s, 6), code, data]

        if line.kind is Kind.EXEC_STARTED:
            begun[op] = now_ns
            terminals |= {op} if line.data.get("pty") else set()
            yield event(now_ns, "o", f"$ {shlex.join(map(str, line.data['argv']))}\r\n")
        pieces = (piece for body in line.bodies for piece in _pieces(line, body, read))
        for after_ms, code, text in sorted(pieces, key=lambda piece: piece[0]):
            at_ns = begun.get(op, now_ns) + after_ms * 1_000_000
            shown = text if op in terminals else text.replace("\n", "\r\n")
            yield event(min(at_ns, now_ns), code, shown)
        if line.kind in _ENDS:
            exit_code = line.data.get("code")
            yield event(now_ns, "x", "timeout" if exit_code is None else str(exit_code))


def _pieces(
    line: Line, body: BodyRef, read: Callable[[BodyRef], bytes]
) -> Iterator[tuple[int, str, str]]:
    """Yield the parts of a stream: milliseconds since the start, asciicast's code, and text."""
    times = line.data.get(f"{body.name}_times")
    if body.name not in ("stdin", "stdout", "stderr") or (body.name == "stdin" and not times):
        return
    content, begin = read(body), 0
    decoder = getincrementaldecoder("utf-8")("replace")
    for after_ms, end in times or ():
        yield after_ms, "i" if body.name == "stdin" else "o", decoder.decode(content[begin:end])
        begin = max(begin, end)
    last_ms = times[-1][0] if times else _AT_END
    rest = decoder.decode(content[begin:], final=True)
    yield last_ms, "i" if body.name == "stdin" else "o", rest
