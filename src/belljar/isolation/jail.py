"""A live jail: its launcher's process, status, end, and failed starts.

The owner holds three pipes: *lifeline* (closing it ends the jail), *status* (lines as in
`native/jail/supervise.c`) and *diagnosis* (standard error).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Final

import anyio

from belljar.dataclass import dataclass
from belljar.descriptors import exhaustion_as_host_error, open_fd
from belljar.errors import BelljarError, CellError, HostError
from belljar.host.tools import run_briefly
from belljar.isolation.program_root import package_program
from belljar.plan.jail import JailFds, JailSpec, jail_argv
from belljar.process import (
    ProcessId,
    close_all,
    identify,
    is_alive,
    kill,
    namespaces_of,
    pin_namespaces,
    signal_name,
)
from belljar.subids import grant_hint
from belljar.units import printable

# A killed process is gone in milliseconds; one that the kernel holds for longer is reported as
# left.
_KILL_STEP_S: Final = 2.0
# For a killed jail whose end can't be seen: it takes milliseconds.
_BLIND_S: Final = 0.2
_MAX_DIAGNOSIS_BYTES: Final = 16 << 10  # a runtime may print without end
_MAX_STATUS_BYTES: Final = 8 << 10  # a compromised supervisor may, too


@dataclass(frozen=True, slots=True, kw_only=True)
class JailEnd:
    signal: int | None
    status: int | None
    cause: str

    def __str__(self) -> str:
        return f"status {self.status}" if self.signal is None else signal_name(self.signal)


def measure_counter_khz() -> int:
    """Return 0 without a counter. Blocks 50 ms. Raises `HostError`."""
    launcher = str(package_program("jail", mode=os.X_OK))
    status, output = run_briefly(launcher, "--measure-clock")
    if status != 0 or not output.strip().isdecimal():
        raise HostError("the host's time-stamp counter could not be measured", where=launcher)
    return int(output)


def start_jail(
    spec: JailSpec,
    program: tuple[str, ...],
    *,
    kept: tuple[int, ...] = (),
    hold: int | None = None,
    stdin_fd: int | None = None,
    user_namespace: int | None = None,
) -> Jail:
    """Start `program` in a jail; call `Jail.wait_running` next. Raises `HostError`.

    The jail is made below `user_namespace`. All descriptors stay the caller's.
    With `spec.network` the program waits for `go_on`.
    """
    launcher = str(package_program("jail", mode=os.X_OK))
    pipes: list[tuple[int, int]] = []
    try:
        with exhaustion_as_host_error():
            for _ in range(4 if spec.network else 3):
                pipes.append(os.pipe())
    except BaseException:
        close_all(fd for pipe in pipes for fd in pipe)
        raise
    (lifeline_read, lifeline_write), (status_read, status_write) = pipes[:2]
    diagnosis_read, diagnosis_write = pipes[2]
    go_read, go_write = pipes[3] if spec.network else (None, None)
    fds = JailFds(
        lifeline=lifeline_read,
        status=status_write,
        kept=kept,
        hold=hold,
        stdin=stdin_fd,
        user_namespace=user_namespace,
        network=go_read,
    )
    given = (hold, stdin_fd, user_namespace, go_read)
    inherited = (lifeline_read, status_write, *kept, *(fd for fd in given if fd is not None))
    try:
        process = subprocess.Popen(
            jail_argv(launcher, spec, fds, program),
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=diagnosis_write,
            stderr=diagnosis_write,
            # Nothing of the owner's environment (credentials, LD_PRELOAD) gets into a jail.
            env={},
            close_fds=True,
            start_new_session=True,  # Ctrl-C goes to the owner, which destroys the cell in order
        )
    except BaseException as exc:
        close_all((lifeline_write, status_read, diagnosis_read, go_write))
        if isinstance(exc, OSError):
            what = f"the jail's launcher can't be run: {exc.strerror}"
            raise HostError(what, where=launcher) from exc
        raise
    finally:
        close_all((lifeline_read, status_write, diagnosis_write, go_read))
    return Jail(spec.cell_id, process, lifeline_write, status_read, diagnosis_read, go_write)


class Jail:
    def __init__(
        self,
        cell_id: str,
        process: subprocess.Popen[bytes],
        lifeline: int,
        status: int,
        diagnosis: int,
        go: int | None = None,
    ) -> None:
        self.cell_id, self.supervisor, self._process = cell_id, identify(process.pid), process
        self.child: ProcessId | None = None
        self.namespaces: Mapping[str, int] = {}
        self.ended: JailEnd | None = None
        self._pins = dict[str, int]()
        self._lifeline: int | None = lifeline
        self._status: int | None = status
        self._diagnosis: int | None = diagnosis
        self._go, self._status_text, self._diagnosed = go, b"", b""
        self._reading = threading.Lock()  # a cell's end is asked for in several threads
        # A supervisor that falls silent must not block the owner's event loop.
        for fd in (status, diagnosis):
            os.set_blocking(fd, False)

    async def wait_running(self) -> None:
        """Raise `HostError` or `CellError` with the failed step."""
        # Once it runs: the last namespace is made on the way in, after the child was announced
        child = await self._wait_status_line(b"running")
        ours = namespaces_of(os.getpid())
        # While these descriptors are open, the kernel gives the namespaces' numbers to no others.
        self._pins = pin_namespaces(child)
        numbers = {name: os.fstat(fd).st_ino for name, fd in self._pins.items()}
        # One that this process shares is not the jail's own.
        self.namespaces = {
            name: number for name, number in numbers.items() if ours.get(name) != number
        }

    async def wait_network(self) -> ProcessId:
        """Return the namespace's process 1. Raises as `wait_running`."""
        return await self._wait_status_line(b"network")

    def go_on(self) -> None:
        """Let the program start. Raises as `wait_running`."""
        go, self._go = self._go, None
        if go is None:
            raise RuntimeError("this jail waits for nothing")
        try:
            os.write(go, b"g")
        except OSError as exc:
            # EPIPE: the jail has ended meanwhile, and its status says why.
            self.final_status(_KILL_STEP_S)
            raise self._start_error() from exc
        finally:
            os.close(go)

    async def _wait_status_line(self, word: bytes) -> ProcessId:
        gone = False
        with anyio.move_on_after(START_DEADLINE_S):
            while self._status is not None:
                self.read_status()
                if word in self._status_text.splitlines() and self.child is not None:
                    return self.child
                if b"failed step" in self._status_text or self.ended is not None or gone:
                    break
                # The pipe of a supervisor that was killed is readable for ever, so its end is
                # looked at before what it has reported.
                gone = self._process.poll() is not None
                if not gone:
                    await anyio.wait_readable(self._status)
        raise self._start_error()

    def read_status(self) -> JailEnd | None:
        with self._reading:
            self._status_text += _drain(self._status, _MAX_STATUS_BYTES - len(self._status_text))
            # A compromised supervisor may send any bytes.
            for line in self._status_text.decode("utf-8", "replace").splitlines():
                # Only the first one counts: a later one could name another process to be killed.
                if (match := _CHILD.fullmatch(line)) and self.child is None:
                    self.child = identify(int(match[1]))
                elif match := ENDED.fullmatch(line):
                    is_signal, number = match[1] == "signal", int(match[2])
                    by, status = (number, None) if is_signal else (None, number)
                    self.ended = JailEnd(signal=by, status=status, cause=match[3])
        return self.ended

    def diagnosis(self) -> str:
        """Return stderr: escaped, bounded, on one line."""
        with self._reading:
            room = _MAX_DIAGNOSIS_BYTES - len(self._diagnosed)
            self._diagnosed += _drain(self._diagnosis, room)
        lines = (line.strip() for line in self._diagnosed.splitlines())
        return printable(b"; ".join(line for line in lines if line), max_chars=2000)

    async def end(self) -> None:
        """Kill everything and wait, at most six seconds. Idempotent."""
        lifeline, self._lifeline = self._lifeline, None
        close_all((lifeline,))
        # First the closed lifeline alone: then the supervisor can end all in order, and report how.
        for victim in (None, self.child, self.supervisor):
            try:
                if victim is not None:
                    with contextlib.suppress(PermissionError):
                        kill(victim)
                has_ended = await self._exited()
                self.read_status()
                if has_ended and self.child is not None and is_alive(self.child):
                    await _wait_end(self.child.pid, _KILL_STEP_S)
                if has_ended and (self.child is None or not is_alive(self.child)):
                    break
            except OSError:  # blind without a descriptor: the look for survivors says what is left
                await anyio.sleep(_BLIND_S)
        self.read_status()
        self.diagnosis()
        with self._reading:  # a reader in another thread has the number of one of them
            fds = (self._status, self._diagnosis, self._go)
            self._status = self._diagnosis = self._go = None
            close_all(fds)

    def final_status(self, timeout_s: float) -> JailEnd | None:
        give_up = time.monotonic() + timeout_s
        while (
            self.read_status() is None
            and (status := self._status) is not None
            and (left_s := give_up - time.monotonic()) > 0
        ):
            # Not `select`, which takes no descriptor from 1,024 on
            poller = select.poll()
            poller.register(status, select.POLLIN)
            is_told = poller.poll(left_s * 1000)
            if is_told and self.read_status() is None and self._process.poll() is not None:
                break
        return self.ended

    async def wait_ended(self) -> JailEnd | None:
        """Return None if the supervisor died silently."""
        while self.read_status() is None and self._process.poll() is None:
            await self._exited(timeout_s=3600.0)
        return self.read_status()

    async def wait_run(self) -> JailEnd | None:
        """Return None if its supervisor died. Raises as `wait_running`."""
        ended = await self.wait_ended()
        if b"running" not in self._status_text.splitlines():
            raise self._start_error()
        return ended

    def release_namespaces(self) -> None:
        """Their numbers may be reused from now on."""
        pins, self._pins = self._pins, {}
        close_all(pins.values())

    def lend_lifeline(self) -> int:
        """Return it once: closing it, the caller ends the jail."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is None:
            raise RuntimeError("this jail's lifeline is closed, or another's already")
        return lifeline

    async def _exited(self, timeout_s: float = _KILL_STEP_S) -> bool:
        if self._process.poll() is None:
            await _wait_end(self._process.pid, timeout_s)
        return self._process.poll() is not None

    def _start_error(self) -> BelljarError:
        status = self._status_text.decode("utf-8", "replace")
        return start_error(self.cell_id, status, self.diagnosis())


async def _wait_end(pid: int, timeout_s: float) -> None:
    with contextlib.suppress(ProcessLookupError), open_fd(os.pidfd_open(pid)) as pidfd:
        with anyio.move_on_after(timeout_s):
            await anyio.wait_readable(pidfd)


def _drain(fd: int | None, max_bytes: int) -> bytes:
    taken = b""
    with contextlib.suppress(BlockingIOError):
        while fd is not None and (chunk := os.read(fd, max_bytes - len(taken))):
            taken += chunk
    return taken


# For a jail to come up.
START_DEADLINE_S: Final = 20.0
_CHILD: Final = re.compile(r"child (\d{1,10})", re.ASCII)
# The launcher's last line, and its only word on why a cell ended.
ENDED: Final = re.compile(r"ended (exit|signal) (\d{1,10}) cause (itself|owner|lifetime)", re.ASCII)
# The launcher's line for a step that failed, with the number it has in the README of `native/jail`.
_FAILED: Final = re.compile(r"failed step (\d+) ([^:]+) errno (\d+): (.*)", re.ASCII)
# Step 21 of the launcher waits for the runtime's first process, whose end it reports thus.
_RUNTIME: Final = re.compile(r"failed step 21 runtime (exit|signal|empty) (\d+)", re.ASCII)


# Steps of `native/jail`, by their numbers in its README, that a host's settings may forbid or its
# kernel lack: namespaces, identity, group namespace, host name, mounts, locked and mapped ones,
# network, device nodes, subordinate ids, kernel files. A failure elsewhere is Belljar's own.
_HOST_STEPS: Final = frozenset({3, 4, 6, 7, 8, 23, 24, 25, 26, 27, 28})
# Mounts with user attributes need Linux 6.6.
_MOUNTS: Final = 22
_HINT_HOST: Final = (
    "`belljar doctor` says what this host lacks, and docs/tiers.md what each tier needs"
)
# For steps whose remedy is known; the others have the general hint.
_HINTS: Final = {
    27: f"{grant_hint('USER')}, and install the package uidmap",
    28: "parts of this host's /proc or /sys are covered, as in a container: run where "
    "they are whole (docker: `--security-opt systempaths=unconfined`)",
}


def find_agent(jail_pid: int) -> int | None:
    """Return the first process below it in another mount namespace."""
    pid, jail = jail_pid, namespaces_of(jail_pid, ("mnt",))
    with contextlib.suppress(OSError, ValueError, IndexError):
        for _ in range(8):
            with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:  # noqa: PTH123
                pid = int(file.read(64).split()[0])
            if (mounts := namespaces_of(pid, ("mnt",))) and jail and mounts != jail:
                return pid
    return None


def start_error(cell_id: str, status: str, diagnosis: str) -> BelljarError:
    where, more = f"jail of cell {cell_id}", f": {diagnosis}" if diagnosis else ""
    text = f"{status}\n{diagnosis}"
    # A program that could not be started has said so; that its status was 125 may be there, too
    if (runtime := _RUNTIME.search(text)) and _FAILED.search(status) is None:
        how = {"exit": "status", "empty": "no process left, and status"}.get(runtime[1], "signal")
        end = f"{how} {runtime[2]}"
        what = f"the OCI runtime ended with {end}, and printed{more or ' nothing'}"
        return CellError(what, where=where)
    if (failed := _FAILED.search(text)) is None:
        ended = next(filter(ENDED.fullmatch, status.splitlines()), "killed, or late")
        return CellError(f"the jail did not come up ({ended}){more}", where=where)
    step, code, reason = int(failed[1]), int(failed[3]), failed[4]
    what = f"step {step}, {failed[2]}, failed: {printable(reason, max_chars=300)}"
    if step in _HOST_STEPS or (step == _MOUNTS and code == errno.EOPNOTSUPP):
        refused = f"the jail can't be built here: {what}{more}"
        return HostError(refused, where=where, hint=_HINTS.get(step, _HINT_HOST))
    hint = "if this host is unusual, `belljar doctor` may say why"
    return CellError(f"the jail could not be built: {what}", where=where, hint=hint)
