"""Programs that a task's own code starts, and places that this process connects to.

Counted and named, not refused: a task's code is trusted. What a native module does is not seen.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from belljar.airgap import proxies
from belljar.events import JsonValue
from belljar.units import printable

if TYPE_CHECKING:
    from types import FrameType

MAX_NAMES: Final = 20  # names beyond these, of thousands of programs, are counted together
_EVENTS: Final = frozenset(
    ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "os.forkpty")
)
# They start programs without an event: that they were imported, by whomever, has to do
_SPAWNS: Final = frozenset(f"multiprocessing.popen_{how}" for how in ("spawn_posix", "forkserver"))
_STDLIB: Final = sysconfig.get_path("stdlib") + "/"  # between an event and its cause
# Of each event's arguments, the index of an address, or of a name to look up
_PLACES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("socket.connect", "socket.sendto", "socket.sendmsg"), 1),
    **dict.fromkeys(("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"), 0),
}


class HostActivity(NamedTuple):
    """Programs that the task's code started, and this process's connections and lookups beyond this
    host (ADDRESS:PORT, or a name), without Belljar's own.
    """

    programs: Counter[str]
    connections: Counter[str]

    def data(self) -> dict[str, JsonValue]:
        """Return the fields of `run.evaluated`."""
        counts = {"host_processes": dict(self.programs), "connections": dict(self.connections)}
        return {**counts, "proxies": [*proxies_here()]}


_watching: HostActivity | None = None
_beside = ""  # the directory of a package whose own work is Belljar's


@contextmanager
def watched_host(*, beside: str = "") -> Iterator[HostActivity]:
    """`beside`: a package whose own work is Belljar's."""
    global _watching, _beside  # a hook can't be taken away, so one stays and looks here
    platform.processor()  # starts `uname`, once in a process: OpenAI's client asks for it
    _install()
    spawns = ["multiprocessing"] * len(_SPAWNS & sys.modules.keys())
    # A package that isn't there has no place: `./` would be the task's.
    _beside = _place_of(beside) if beside and find_spec(beside) is not None else ""
    _watching = found = HostActivity(Counter(spawns), Counter())
    try:
        yield found
    finally:
        _watching, _beside = None, ""


@cache
def _install() -> None:
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    watching = _watching  # read once: another thread may leave the block meanwhile
    if watching is None or not (event in _EVENTS or event in _PLACES or event == "import"):
        return
    with suppress(Exception):  # what a hook raises would end the task's call
        if event == "import":
            if arguments[0] in _SPAWNS:
                _count(watching.programs, "multiprocessing")
            return
        frame: FrameType | None = sys._getframe(1)
        if event in _PLACES:
            place = "an address that can't be read"
            with suppress(Exception):
                place = _place(event, arguments)
            # Belljar's own is a real upstream, on record, or a look for ways out, sending nothing.
            while frame is not None and _is_stdlib(frame.f_code.co_filename):
                frame = frame.f_back
            if place and (frame is None or not _is_belljars(frame.f_code.co_filename)):
                _count(watching.connections, place)
            return
        # `subprocess` raises an event of its own before that of the call that it makes.
        name = frame.f_globals.get("__name__") if frame is not None else ""
        is_within = event != "subprocess.Popen" and name == "subprocess"
        if not is_within and _is_the_tasks(frame):
            _count(watching.programs, _program(event, arguments))


def _count(counts: Counter[str], name: str) -> None:
    counts[name if name in counts or len(counts) < MAX_NAMES else "others"] += 1


def _place(event: str, arguments: tuple[Any, ...]) -> str:
    where, port = arguments[_PLACES[event]], ""
    if getattr(arguments[0], "family", None) == socket.AF_VSOCK:
        return "" if where[0] == 1 else f"vsock {where[0]}:{where[1]}"  # 1: this machine itself
    if _PLACES[event]:  # a Unix socket's address is no tuple
        where, port = where[:2] if isinstance(where, tuple) else ("", "")
    name = os.fsdecode(where).rstrip(".") if isinstance(where, str | bytes) else ""
    if is_here(name):
        return ""
    return printable(f"{name}:{port}" if port else name, max_chars=200)


def is_here(name: str) -> bool:
    # Linux takes the unspecified address for this host.
    with suppress(ValueError):  # a name
        return (address := ip_address(name)).is_loopback or address.is_unspecified
    return name in {"", "localhost"}


def proxies_here() -> list[str]:
    """Return variables that name a proxy on this host."""
    return [name for name, host in proxies().items() if is_here(host)]


def _is_belljars(file: str) -> bool:
    return file.startswith(_places()[0]) or bool(_beside and file.startswith(_beside))


def _is_stdlib(file: str) -> bool:
    # Without a virtual environment site-packages lies below the standard library's directory.
    return file.startswith(_STDLIB) and "-packages" not in file


def _program(event: str, arguments: tuple[Any, ...]) -> str:
    if event in {"os.fork", "os.forkpty", "os.system"}:
        return "sh" if event == "os.system" else "fork"
    program, words = arguments[:2]
    if program is None:  # of `subprocess.Popen`
        program = words if isinstance(words, str | bytes | os.PathLike) else words[0]
    return printable(Path(os.fsdecode(program)).name, max_chars=80)


def _is_the_tasks(frame: FrameType | None) -> bool:
    _, anyio, inspect = _places()
    is_inspects = False
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_belljars(file):
            return False
        is_inspects |= file.startswith(inspect)
        if not (file.startswith((anyio, inspect, "<frozen")) or _is_stdlib(file)):
            return True
        frame = frame.f_back
    return not is_inspects


@cache
def _places() -> tuple[str, ...]:
    return tuple(map(_place_of, ("belljar", "anyio", "inspect_ai")))


def _place_of(package: str) -> str:
    spec = find_spec(package)
    return f"{Path(str(spec and spec.origin)).parent}/"
