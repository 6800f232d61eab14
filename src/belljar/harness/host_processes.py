"""Programs that a task's own code starts on this host, as Python's audit hook sees them.

Counted and named, not refused: a task's code is trusted. What starts them beside Python's
functions (`multiprocessing`'s spawn, a native module) is not seen.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belljar.units import printable

if TYPE_CHECKING:
    from types import FrameType

MAX_NAMES: Final = 20
# Of each event's arguments, the index of the program's; `subprocess.Popen` has its words next.
_EVENTS: Final[Mapping[str, int | None]] = {
    **dict.fromkeys(("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"), 0),
    **dict.fromkeys(("os.fork", "os.forkpty"), None),
}
_STDLIB: Final = sysconfig.get_path("stdlib") + "/"
_watching: Counter[str] | None = None


@contextmanager
def watched_processes() -> Iterator[Counter[str]]:
    """Count the programs that the block's code, not Belljar or Inspect by itself, starts."""
    global _watching  # a hook can't be taken away, so one stays and looks here
    _install()
    _watching = found = Counter[str]()
    try:
        yield found
    finally:
        _watching = None


@cache
def _install() -> None:
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is None or event not in _EVENTS:
        return
    with suppress(Exception):  # what a hook raises would end the task's call
        frame = sys._getframe(1)
        is_within = event != "subprocess.Popen" and frame.f_globals.get("__name__") == "subprocess"
        if not is_within and _is_the_tasks(frame):
            name = _program(event, arguments)
            known = name in _watching or len(_watching) < MAX_NAMES
            _watching[name if known else "others"] += 1


def _program(event: str, arguments: tuple[Any, ...]) -> str:
    if _EVENTS[event] is None:
        return "fork"
    if event == "os.system":
        return "sh"
    program = arguments[0]
    if program is None:  # of `subprocess.Popen`
        words = arguments[1]
        program = words if isinstance(words, str | bytes | os.PathLike) else words[0]
    return printable(Path(os.fsdecode(program)).name, max_chars=80)


def _is_the_tasks(frame: FrameType | None) -> bool:
    """Return whether the first caller that is no library for starting programs is the task's."""
    ours, anyio, inspect = _places()
    is_inspects = False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(ours):
            return False
        is_inspects |= file.startswith(inspect)
        is_library = file.startswith((anyio, inspect, "<frozen")) or (
            file.startswith(_STDLIB) and "-packages" not in file
        )
        if not is_library:
            return True
        frame = frame.f_back
    return not is_inspects


@cache
def _places() -> tuple[str, ...]:
    specs = (find_spec(name) for name in ("belljar", "anyio", "inspect_ai"))
    return tuple(f"{Path(str(spec and spec.origin)).parent}/" for spec in specs)
