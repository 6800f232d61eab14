"""Traces left in a cell before a revert, and searched for in the machine after it.

The new machine's memory is searched from outside, before anything in it knows the search terms.
"""

from __future__ import annotations

import os
import secrets
import time
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import anyio
import anyio.to_thread

from belljar.cell.cell import Cell
from belljar.channel import ExecRequest, Operation, Stream
from belljar.channel.outcomes import agent_request
from belljar.errors import CellError, ContainmentBreach, ProtocolViolation
from belljar.events import JsonValue, Kind
from belljar.isolation.sandbox import Sandbox
from belljar.units import printable

# A dead or hostile old machine must not hold up the revert.
_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 2.0
# The program says a line for each trace; whatever more comes is a hostile machine's.
_MAX_OUTPUT_BYTES: Final = 64 << 10
# /proc/PID/pagemap has an entry for each page.
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Of another process's memory at once: a search holds no more of it.
_CHUNK_BYTES: Final = 4 << 20
# A larger mapping is reserved by a runtime: its page table is too long to read.
_MAX_MAPPING_BYTES: Final = 64 << 30
_PRESENT, _OF_FILE = 1 << 63, 1 << 61  # /proc/PID/pagemap
_FIRST_PORT, _PORTS = 20_000, 10_000  # Below those that a connection may have as its own end


@dataclass(frozen=True, slots=True)
class Canary:
    cell: Cell
    token: str
    directories: tuple[str, ...]
    port: int
    said: frozenset[str]
    running: Operation | None

    @property
    def traces(self) -> tuple[str, ...]:
        files = (f"file {directory}" for directory in self.directories)
        return (*files, f"port {self.port}", "process", "environment", "memory")

    async def search(self, new: Cell) -> None:
        """Search another machine for the traces, on record. Raise `ContainmentBreach`."""
        began, found = time.monotonic(), list[str]()
        unseen = [f"{trace}: not left" for trace in self.traces if trace not in self.said]
        try:
            seen = await anyio.to_thread.run_sync(memory_has, new._live, self.token.encode())
            found += ["memory"] if seen else []
            unseen += ["memory: not all of it"] if seen is None else []
        except OSError as error:  # an ordinary user may not read it
            unseen.append(f"memory: {error.strerror}")
        lines, failure = await self._ask(new)
        if failure is not None:  # a trace that has survived may have ended the search
            unseen.append("files, processes, port: not searched")
        unseen += [line.removeprefix("unseen ") for line in lines if line.startswith("unseen ")]
        found += [line for line in lines if line != "end" and not line.startswith("unseen ")]
        planted = [trace for trace in self.traces if trace in self.said]
        if planted and not await self._is_there():
            unseen += [f"{trace}: ended before the search" for trace in planted]
            planted = []
        data: dict[str, JsonValue] = {
            "from": self.cell.id,
            "planted": [*planted],
            "found": [*found],
            "not_checked": [*unseen],
            "duration_ms": round((time.monotonic() - began) * 1000, 3),
        }
        new.note(Kind.CELL_REVERT_VERIFIED, data)
        if found:
            shown = printable(", ".join(found), max_chars=300)
            raise ContainmentBreach(
                f"a revert left something of the old machine in the new one: {shown}",
                where=f"cell {new.id}",
                hint="nothing of this run may count as contained; please report this",
            ) from failure
        if failure is not None:
            raise failure

    async def _ask(self, new: Cell) -> tuple[list[str], BaseException | None]:
        text = f"token={self.token}\nport={self.port}\n"
        text += "".join(f"dir{at}={each}\n" for at, each in enumerate(self.directories))
        said, failure = bytearray(), None

        def take(stream: Stream, chunk: bytes) -> None:
            said.extend(chunk if stream is Stream.STDOUT else b"")

        request = _request(new, ["search"])
        try:
            await new._live.client.exec(request, input=text.encode(), on_output=take)
        except BaseException as error:  # noqa: BLE001 - raised once what was found is on record
            failure = error
        lines = said.decode("utf-8", "replace").split("\n")[:-1]
        if failure is None and lines[-1:] != ["end"]:
            failure = CellError("the new machine could not be searched", where=f"cell {new.id}")
        return lines, failure

    async def _is_there(self) -> bool:
        if self.running is None:
            return False
        with anyio.CancelScope(shield=True), suppress(CellError):
            # What it has sent is read with the answer
            await self.cell._live.client.ping(timeout_s=_ANSWER_TIMEOUT_S)
            return self.running.result is None
        return False


@asynccontextmanager
async def canary_in(cell: Cell) -> AsyncIterator[Canary]:
    """Leave traces in a cell during the block."""
    token, port, said = secrets.token_hex(16), _FIRST_PORT + secrets.randbelow(_PORTS), b""
    directories = tuple(dict.fromkeys(("/tmp", cell.plan.workdir)))  # noqa: S108 - the guest's
    words = ["plant", token, str(port), *directories]
    request = _request(cell, words, env={f"_{token}": token})
    stack, running = AsyncExitStack(), None
    try:
        # A dead cell, or one that hangs, holds no traces: it is reverted all the same
        try:
            with anyio.move_on_after(_TIMEOUT_S):
                await cell._live.client.ping(timeout_s=_ANSWER_TIMEOUT_S)
                running = await stack.enter_async_context(cell._live.client.open_exec(request))
                while not said.endswith(b"end\n") and len(said) < _MAX_OUTPUT_BYTES:
                    if (chunk := await running.receive_stdout()) is None:
                        break
                    said += chunk
        except ProtocolViolation as violation:
            with suppress(CellError):
                cell._end_if_dead(violation)
        except (CellError, OSError):
            pass
        lines = frozenset(said.decode("utf-8", "replace").split("\n"))
        yield Canary(cell, token, directories, port, lines, running)
    except BaseException:
        if running is not None:  # the cell stays in use; else all of it is destroyed
            with anyio.CancelScope(shield=True), suppress(CellError, OSError):
                with anyio.move_on_after(_TIMEOUT_S):
                    await running.close_stdin()
                    await running.wait()
        raise
    finally:
        with anyio.CancelScope(shield=True), suppress(CellError, OSError):
            await stack.aclose()


def _request(cell: Cell, words: list[str], env: Mapping[str, str] | None = None) -> ExecRequest:
    limit_s = None if words[0] == "plant" else _TIMEOUT_S
    options = {"env": env or {}, "timeout_s": limit_s, "max_stdout_bytes": _MAX_OUTPUT_BYTES}
    return agent_request(["sh", *words], cell._agent_user(), **options)


def memory_has(machine: Sandbox, needle: bytes) -> bool | None:
    """Search a machine's memory; return None if not all was read."""
    skipped = list[str]()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and machine.holds(int(process.name)):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                if _process_has(process, needle, skipped):
                    return True
    return None if skipped else False


def _process_has(process: Path, needle: bytes, skipped: list[str]) -> bool:
    maps = (process / "maps").read_text("utf-8", "replace")
    with (process / "mem").open("rb", 0) as memory, (process / "pagemap").open("rb", 0) as pages:
        for start, end in _filled(maps, pages, skipped):
            for at in range(start, end, _CHUNK_BYTES):
                # with the end of the next chunk, where a needle may lie across
                size = min(_CHUNK_BYTES + len(needle), end - at)
                with suppress(OSError):  # it was unmapped meanwhile, or is a device's
                    if needle in os.pread(memory.fileno(), size, at):
                        return True
    return False


def _filled(maps: str, pages: BinaryIO, skipped: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the present ranges that are not a file's content."""
    for line in filter(None, maps.split("\n")):  # a file's name may hold other ends of lines
        fields = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in fields[0].split("-"))
        if "r" not in fields[1] or fields[-1] in {"[vvar]", "[vsyscall]"} or start >= 1 << 63:
            continue
        if end - start > _MAX_MAPPING_BYTES:
            skipped.append(line)
            continue
        # Shared memory has an inode, too, whose file is gone
        is_file = fields[4] != "0" and not fields[-1].endswith("(deleted)")
        entries = array("Q")
        count = (end - start) // _PAGE_BYTES
        entries.frombytes(os.pread(pages.fileno(), 8 * count, 8 * (start // _PAGE_BYTES)))
        of = _PRESENT | _OF_FILE if is_file else _PRESENT
        entries.append(0)  # ends the last stretch
        first = None
        for index, entry in enumerate(entries):
            if entry & of == _PRESENT:
                first = index if first is None else first
            elif first is not None:
                yield start + first * _PAGE_BYTES, start + index * _PAGE_BYTES
                first = None
