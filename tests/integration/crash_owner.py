"""An owner of cells that dies wherever it is told to: `crash_owner.py HOME POLICY` answers each
line of JSON on standard input with one on standard output.

It imports everything once and forks for each request, so an owner costs milliseconds. An owner
opens a cell, works in it, reverts it, saves and forks it where that can be, and destroys it, or
goes through as many of these phases as a site needs. A *site* is a line of Belljar's own code in
one of them: the owner kills itself with SIGKILL just before it would run that line for the first
time in that phase. Orphans become children of this process (it is a subreaper), so whoever looks
for what is left finds it below.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import anyio

import belljar
from belljar.cell.open import open_cell
from belljar.isolation.reap import reap as reap_cells
from belljar.policy.load import load_policy

ROOMS = ("cell", "isolation", "network", "channel", "ledger", "host", "image")
PHASES = ("create", "exec", "revert", "snapshot", "fork", "destroy", "end")
"""`destroy` comes right after `exec`; `end` is the destruction after all the others."""
# Before a site's phase a life goes through these alone: each other would cost a machine.
BEFORE = {
    "create": (),
    "exec": (),
    "revert": ("exec",),
    "snapshot": (),
    "fork": ("snapshot",),
    "destroy": ("exec",),
    "end": ("exec", "revert", "snapshot", "fork"),
}
Site = tuple[str, str, int, str]
ANY_LINE = 0
"""As a site's line: the first of its function that runs."""
ENOUGH = 4
"""So many calls of a function are looked at in a phase of a rehearsal."""
_PR_SET_CHILD_SUBREAPER = 36
_OPTIMIZED = 0x1  # a function's code; a module's or a class's body runs only when it is imported
_PACKAGE = Path(belljar.__file__).parent
LEFT_RUNNING = ["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo started; cat"]


class Wire:
    """Over Belljar's lines: notes each that is reached, or kills this process at one."""

    def __init__(self, site: Site | None = None) -> None:
        self.phase = PHASES[0]
        self.seen: dict[Site, None] = {}
        self._site = site
        self._wanted: dict[str, str | None] = {}
        self._calls: dict[tuple[str, CodeType], int] = {}

    def stretch(self) -> None:
        """From here on, in this thread and in those to come."""
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def _enter(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if self._site is not None and code.co_name != self._site[3]:
            return None  # No line of this function is the site.
        if self._site is None:
            calls = self._calls[self.phase, code] = self._calls.get((self.phase, code), 0) + 1
            if calls > ENOUGH:
                return None  # Its lines were seen: to stop at each of them takes time.
        if code.co_filename not in self._wanted:
            self._wanted[code.co_filename] = _own_name(code.co_filename)
        return self._line if code.co_flags & _OPTIMIZED and self._wanted[code.co_filename] else None

    def _line(self, frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        if event == "line":
            code = frame.f_code
            here = (self.phase, self._wanted[code.co_filename] or "", frame.f_lineno, code.co_name)
            if self._site is None:
                self.seen.setdefault(here)
            elif here == self._site or (*here[:2], ANY_LINE, here[3]) == self._site:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def _own_name(filename: str) -> str | None:
    """`isolation/jail.py`; None for code that is not of the rooms looked at."""
    with contextlib.suppress(ValueError):
        name = Path(filename).relative_to(_PACKAGE)
        return str(name) if name.parts[0] in ROOMS else None
    return None


async def own(home: Path, policy: Path, wire: Wire, last: str) -> dict[str, object]:
    """One cell from start to end, by way of what comes before the phase `last`."""
    loaded = load_policy(policy)
    phases = {*BEFORE[last], last}
    if loaded.policy.network is not None:
        phases -= {"revert", "snapshot", "fork"}  # A range with a network has none of them.
    stdout = b""
    async with open_cell(loaded, home=home) as cell:
        if "exec" in phases:
            wire.phase = "exec"
            await cell.write_file("/tmp/file", b"contents")
            stdout = (await cell.exec(LEFT_RUNNING, input=b"input")).stdout
        if "revert" in phases:
            wire.phase = "revert"
            await cell.revert(verify=True)
            await cell.exec(LEFT_RUNNING)
        if "snapshot" in phases:
            wire.phase = "snapshot"
            snapshot = await cell.snapshot()
            if "fork" in phases:
                wire.phase = "fork"
                async with snapshot.fork():
                    pass
        wire.phase = "end" if last == "end" else "destroy"
    return {
        "stdout": stdout.decode(),
        "cell_id": cell.id,
        "clean": bool(cell.destruction and cell.destruction.clean),
    }


async def hold(home: Path, policy: Path) -> None:
    """A cell that lives as long as standard input: says its id, then what a command says."""
    async with open_cell(load_policy(policy), home=home) as cell:
        print(cell.id, flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            output = await cell.exec(["cat"], input=line.encode())
            print(output.stdout.decode().strip(), flush=True)


# ---- requests


def rehearse(home: Path, policy: Path, last: str = "end") -> dict[str, object]:
    """A life up to that phase, and every site it passed in order."""
    wire = Wire()
    wire.stretch()
    said = anyio.run(own, home, policy, wire, last)
    return {**said, "sites": list(wire.seen)}


def die(home: Path, policy: Path, site: list[Any]) -> dict[str, object]:
    """A life that ends at the site; answers only when it did not pass it."""
    wire = Wire((site[0], site[1], site[2], site[3]))
    wire.stretch()
    return anyio.run(own, home, policy, wire, site[0])


def reap(home: Path) -> dict[str, object]:
    started = time.monotonic()
    reaped = anyio.run(reap_cells, home)
    remaining = [what for one in reaped for what in one.remaining]
    return {
        "reaped": [str(one) for one in reaped],
        "remaining": remaining,
        "duration_s": time.monotonic() - started,
    }


REQUESTS: dict[str, Callable[..., dict[str, object]]] = {
    "rehearse": rehearse,
    "die": die,
    "reap": lambda home, _policy: reap(home),
}


def answer(home: Path, policy: Path, request: dict[str, Any]) -> dict[str, object]:
    """Fork for the request; its answer, or the signal that it died of."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(2, 1)
        try:
            said = REQUESTS[request.pop("do")](home, policy, **request)
        except BaseException as error:  # noqa: BLE001 - told, whatever it is
            said = {"error": f"{type(error).__name__}: {error}"}
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said_by_it = file.read()
    _, status = os.waitpid(pid, 0)
    died_of = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return {"pid": pid, "signal": died_of, **(json.loads(said_by_it) if said_by_it else {})}


def bury() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(home: Path, policy: Path) -> None:
    for module in pkgutil.walk_packages([str(_PACKAGE)], "belljar."):
        if module.name.split(".")[1] in {*ROOMS, "plan", "policy", "units"}:
            # An ordinary user's libraries lack those of the extra `network`
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(module.name)
    for name in (
        "anyio._backends._asyncio",
        "encodings.idna",
        "cryptography.hazmat.primitives.asymmetric.ed25519",
    ):
        importlib.import_module(name)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        said = answer(home, policy, json.loads(line))
        bury()
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    if sys.argv[3:] == ["hold"]:
        anyio.run(hold, Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
