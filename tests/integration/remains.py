"""What is left of cells on this host, found without a line of the code that is tested: by descent,
by name, by lock, and by what the store looked like before."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.machine import control_groups

PROC = Path("/proc")
CELL_ID = re.compile(rb"c-[0-9a-f]{12}")
SERVERS_OF_TESTS: set[int] = set()
"""Processes that stay on purpose until all tests end (`processes.quick_command`); their children
count."""
# What grows by design: runs are evidence, lock files are kept (not held), bodies of the store have
# their own checks.
_KEPT = ("runs", "reports", "locks", "keys")
_UNFINISHED = re.compile(r"c-[0-9a-f]{12}|\d+-\d+-|/\.[^/]*$|/(tmp|cells|journal)/")


@dataclass(frozen=True)
class Remains:
    """Looks for what crashed owners left, against what was there before (None: a store that is
    being filled, where only what is unfinished counts).

    `ancestor` is a subreaper above all those owners; `scratch` is what they have for TMPDIR.
    """

    home: Path
    ancestor: int
    scratch: Path
    before: frozenset[str] | None = None

    @classmethod
    def since_now(cls, home: Path, ancestor: int, scratch: Path) -> Remains:
        return cls(home, ancestor, scratch, frozenset(_listing(home)))

    def of(self, cells: Iterable[str], owners: Collection[int]) -> list[str]:
        """What is there now of these cells and these dead owners."""
        names = list(cells)
        return [
            *(f"process {pid} ({name})" for pid, name in below(self.ancestor)),
            *(
                f"control group {path}"
                for path in control_groups(*names, *(f"facts-{pid}-" for pid in owners))
            ),
            *(f"mount {line}" for line in _lines("self/mountinfo", [*names, str(self.home)])),
            *(f"socket {line}" for line in _lines("net/unix", names)),
            *(f"lock {line}" for line in _locks(set(owners))),
            *(f"loop device {path}" for path in _loops(self.home)),
            *(f"interface {path}" for path in _interfaces(names)),
            *(f"file {path}" for path in sorted(_listing(self.home)) if self._is_new(path)),
            *(f"temporary file {path}" for path in self.scratch.iterdir()),
            *(
                f"file {path}"
                for name in names
                for path in Path("/run").glob(f"belljar/**/*{name}*")
            ),
            *(f"file {path}" for name in names for path in Path("/dev/shm").glob(f"*{name}*")),
        ]

    def _is_new(self, path: str) -> bool:
        if self.before is not None:
            return path not in self.before
        return _UNFINISHED.search(path.removeprefix(str(self.home))) is not None


def within(timeout_s: float, look: Callable[[], list[str]]) -> list[str]:
    """What is still there when it is found empty or timeout is at its end."""
    give_up = time.monotonic() + timeout_s
    while (found := look()) and time.monotonic() < give_up:
        time.sleep(0.01)
    return found


def below(ancestor: int) -> Iterator[tuple[int, str]]:
    """Every process below it that is no corpse, with its name; threads count."""
    children: dict[int, list[tuple[int, str, str]]] = {}
    for directory in PROC.iterdir():
        if directory.name.isdigit():
            with contextlib.suppress(OSError):
                head, _, rest = (directory / "stat").read_text(errors="replace").rpartition(")")
                state, parent = rest.split()[:2]
                if state in "ZX" and len(os.listdir(directory / "task")) > 1:  # noqa: PTH208
                    state = "a dead leader's threads"
                children.setdefault(int(parent), []).append(
                    (int(directory.name), head.partition("(")[2], state)
                )
    todo = [ancestor]
    while todo:
        for pid, name, state in children.get(todo.pop(), []):
            todo.append(pid)
            if state not in {"Z", "X"} and pid not in SERVERS_OF_TESTS:
                yield pid, name


def cells_of(run: Path) -> set[str]:
    """The cells that a ledger names, half a last line included."""
    try:
        return {match.decode() for match in CELL_ID.findall((run / "ledger.jsonl").read_bytes())}
    except FileNotFoundError:
        return set()


def tables_of(cells: Iterable[str]) -> list[str]:
    """nft tables that name a cell or us; none where there is no nft."""
    try:
        shown = subprocess.run(
            ["nft", "list", "tables"], capture_output=True, text=True, check=False, timeout=300
        ).stdout
    except FileNotFoundError:
        return []
    return [
        line for line in shown.splitlines() if any(word in line for word in (*cells, "belljar"))
    ]


def _listing(home: Path) -> Iterator[str]:
    for path in home.iterdir():
        if path.name in _KEPT:
            continue
        yield str(path)
        if path.is_dir():
            yield from (str(inner) for inner in path.iterdir())


def _lines(file: str, words: list[str]) -> Iterator[str]:
    for line in (PROC / file).read_text(errors="replace").splitlines():
        if any(word in line for word in words):
            yield line


def _locks(owners: set[int]) -> Iterator[str]:
    """A lock bears the pid of who took it, also when it is another that keeps it."""
    for line in (PROC / "locks").read_text().splitlines():
        words = line.split()
        if words[1] != "->" and int(words[4]) in owners:
            yield line


def _loops(home: Path) -> Iterator[str]:
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if str(home) in file.read_text():
                yield f"{file.parts[3]} {file.read_text().strip()}"


def _interfaces(names: list[str]) -> Iterator[str]:
    """By a cell's name, or a tap that belongs to one of the uids only cells have."""
    for path in Path("/sys/class/net").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (
                any(name in path.name for name in names)
                or int((path / "owner").read_text()) >= 0x7000_0000
            ):
                yield path.name
