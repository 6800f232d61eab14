"""A cell's commands and terminals as an asciicast (version 3), for asciinema's players."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from belljar.events import Kind
from belljar.ledger import Line
from belljar.ledger.schema import BodyRef

COLUMNS: Final = 100
ROWS: Final = 30
_ENDS: Final = (Kind.EXEC_COMPLETED, Kind.EXEC_TIMED_OUT, Kind.EXEC_FAILED)


def cast(lines: Iterable[Line], cell: str, read: Callable[[BodyRef], bytes]) -> Iterator[Any]:
    """Yield the header, then an event for each piece of output and each exit.

    Each command begins with a prompt of ours. Output is what was kept, as it came: it may hold
    escape sequences, as any terminal recording does. What was typed is left out: no policy allows
    it.
    """
    last_ns, terminals, streamed = 0, set[int](), set[int]()
    for line in lines:
        if line.cell != cell or not line.kind.startswith("exec."):
            continue
        now_ns, op = int(line.mono_ns), line.data["op"]
        if not last_ns:
            last_ns = now_ns
            yield {"version": 3, "term": {"cols": COLUMNS, "rows": ROWS}, "title": f"cell {cell}"}

        def event(code: str, data: str, now_ns: int = now_ns) -> list[Any]:
            nonlocal last_ns
            passed_s, last_ns = max(0, now_ns - last_ns) / 1e9, now_ns
            return [round(passed_s, 6), code, data]

        if line.kind is Kind.EXEC_STARTED:
            terminals |= {op} if line.data.get("pty") else set()
            yield event("o", f"$ {shlex.join(map(str, line.data['argv']))}\r\n")
        for body in line.bodies:
            if body.name in ("stdout", "stderr") and not (line.kind in _ENDS and op in streamed):
                text = read(body).decode("utf-8", "replace")
                shown = text if op in terminals else text.replace("\n", "\r\n")
                yield event("o", shown)
        if line.kind is Kind.EXEC_OUTPUT:
            streamed.add(op)
        if line.kind in _ENDS:
            code = line.data.get("code")
            yield event("x", "timeout" if code is None else str(code))
