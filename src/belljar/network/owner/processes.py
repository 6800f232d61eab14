"""The ranges' shared fork server, and their processes' control groups. Blocking."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from belljar.errors import CellError, HostError
from belljar.network import ipc
from belljar.package import PACKAGE_DIR
from belljar.plan.jail import JailIds
from belljar.plan.obstacles import NETWORK_EXTRA_HINT
from belljar.process import ProcessId, close_all, identify, signal_name
from belljar.units import printable

SERVE: Final = "belljar.network.gateway.serve:serve"
_NAME: Final = "the ranges' fork server"
_START_TIMEOUT_S: Final = 30.0
_END_TIMEOUT_S: Final = 3.0  # Then it is killed.
_ANSWER_TIMEOUT_S: Final = 20.0
_MAP_TIMEOUT_S: Final = 10.0  # It asks the host's name service, which may be far away.
_GONE_HINT: Final = (
    "nothing of it runs on: start again; `belljar ledger show last` shows what came before"
)
_MAX_DIAGNOSIS_BYTES: Final = 16 << 10
# `-I` keeps the environment and the working directory out; the third argument is the import path.
_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); from belljar.network.fork_server "
    "import main; main(sys.argv[1:])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A forked process. The holder closes `pidfd`."""

    process: ProcessId
    pidfd: int

    def kill(self) -> None:
        """SIGKILL; harmless when it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def wait_ended(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        return bool(wait_readable([self.pidfd], timeout_s))


def wait_readable(fds: Sequence[int], timeout_s: float) -> set[int]:
    """Descriptors that are readable or ended in time."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(timeout_s * 1000)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeProcesses:
    """A range's processes and the owner's sockets to them."""

    supervisor: Child
    gateway: Child
    control: socket.socket
    events: socket.socket
    stderr: int
    fork_server: ForkServer

    def close(self) -> None:
        """Close the owner's ends."""
        self.control.close()
        self.events.close()
        close_all((self.stderr, self.supervisor.pidfd, self.gateway.pidfd))


class ForkServer:
    """A running fork server; `started_fork_server` counts `users`."""

    def __init__(self, serve: str = SERVE, imports: Sequence[str] = ()) -> None:
        """`imports`: what a range will need, imported at once. Raises `HostError`."""
        ours, theirs = ipc.pair()
        self.users = 0
        self._socket = ours
        self._lock = threading.Lock()
        self._is_ready = False
        self._last_number = 0
        # A file, not a pipe: its processes go on if nothing reads what they print.
        self._stderr = os.memfd_create("stderr", os.MFD_CLOEXEC)
        own = str(PACKAGE_DIR.parent)
        paths = [path for path in sys.path if path != own and Path(path).is_absolute()]
        arguments = [str(theirs.fileno()), serve, json.dumps([own, *paths]), json.dumps(imports)]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _BOOT, *arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self._stderr,
                    stderr=self._stderr,
                    # No secret of the owner's environment is inherited.
                    env={"LC_ALL": "C.UTF-8"},
                    cwd="/",
                    start_new_session=True,  # Ctrl-C is the owner's to handle
                )
        except OSError as exc:
            self._socket.close()
            os.close(self._stderr)
            what = f"{_NAME} can't be started: {exc.strerror}"
            hint = "run fewer cells at once, or raise the limit of processes"
            raise HostError(what, where=sys.executable, hint=hint) from exc
        self.process = identify(self._process.pid)

    def is_alive(self) -> bool:
        """Whether it can still fork."""
        return self._process.poll() is None

    def wait_ready(self) -> None:
        """Wait until imports are done. Raises `HostError`, `CellError`."""
        with self._lock:
            if self._is_ready:
                return
            self._socket.settimeout(_START_TIMEOUT_S)
            try:
                ipc.receive(self._socket)
            except (ipc.ClosedError, TimeoutError) as exc:
                code = None
                with suppress(subprocess.TimeoutExpired):
                    code = self._process.wait(_END_TIMEOUT_S)
                self._process.kill()  # the next caller gets another
                if code is not None and code < 0:
                    what = f"{_NAME} ended ({signal_name(-code)}) while it started"
                    raise CellError(what, where=sys.executable, hint=_GONE_HINT) from exc
                what = f"{_NAME} did not start: {self.diagnosis() or 'it printed nothing'}"
                raise HostError(what, where=sys.executable, hint=NETWORK_EXTRA_HINT) from exc
            self._socket.settimeout(_ANSWER_TIMEOUT_S)
            self._is_ready = True

    def fork(self, roles: Mapping[str, Sequence[int]], imports: Sequence[str] = ()) -> list[Child]:
        """A child for each role with copies of its descriptors, all or none. Raises `CellError`.

        `imports`: modules that they need.
        """
        counts = {role: len(fds) for role, fds in roles.items()}
        given = [fd for fds in roles.values() for fd in fds]
        with ExitStack() as undo, self._lock:
            answer, pidfds = self._ask({"fork": counts, "imports": [*imports]}, given)
            undo.callback(_discard, pidfds)
            found = [identify(int(pid)) for pid in answer.get("pids", ())]
            children = [
                Child(process=process, pidfd=pidfd)
                for process, pidfd in zip(found, pidfds, strict=False)
                if process is not None
            ]
            if len(children) < len(roles):
                what = str(answer.get("error", "a process of the range ended at once"))
                raise CellError(what, where=_NAME, hint=_GONE_HINT)
            undo.pop_all()
        return children

    def how_ended(self, child: Child) -> str:
        """`exit 1`, `SIGKILL`; "" when unknown."""
        with suppress(CellError), self._lock:
            message, _ = self._ask({"ended": child.process.pid})
            if message["status"] is not None:
                code = os.waitstatus_to_exitcode(int(message["status"]))
                return f"exit {code}" if code >= 0 else signal_name(-code)
        return ""

    def diagnosis(self) -> str:
        """Its standard error, escaped and bounded."""
        return printable(os.pread(self._stderr, _MAX_DIAGNOSIS_BYTES, 0).strip(), max_chars=2000)

    def end(self) -> None:
        """Its children die with it. Bounded."""
        self._socket.close()
        if not self._is_ready:  # it would import everything before it saw the closed socket
            self._process.kill()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._stderr)

    def _ask(
        self, message: dict[str, Any], fds: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        """Its answer and descriptors; the caller holds the lock. Raises `CellError`."""
        self._last_number += 1
        try:
            ipc.send(self._socket, {**message, "number": self._last_number}, fds)
            while True:
                answer, got = ipc.receive(self._socket)
                if answer.get("number") == self._last_number:
                    return answer, got
                _discard(got)  # made for a caller that stopped waiting
        except (ipc.ClosedError, OSError) as exc:
            detail = f": {diagnosis}" if (diagnosis := self.diagnosis()) else ""
            raise CellError(f"{_NAME} is gone{detail}", where=_NAME, hint=_GONE_HINT) from exc


def _discard(pidfds: Sequence[int]) -> None:
    for pidfd in pidfds:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


_running: dict[tuple[int, Path, str], ForkServer] = {}
_running_lock: Final = threading.Lock()


@contextmanager
def started_fork_server(
    home: Path, serve: str = SERVE, imports: Sequence[str] = ()
) -> Iterator[ForkServer]:
    """The store's shared fork server, maybe still importing (`wait_ready`). Raises `HostError`."""
    key = (os.getpid(), home, serve)  # what a fork of this process inherits is its parent's
    with _running_lock:
        fork_server = _running.get(key)
        if fork_server is None or not fork_server.is_alive():
            fork_server = _running[key] = ForkServer(serve, imports)
        fork_server.users += 1
    try:
        yield fork_server
    finally:
        with _running_lock:
            fork_server.users -= 1
            if fork_server.users == 0:
                if _running.get(key) is fork_server:
                    del _running[key]
                fork_server.end()


def map_ids(child: Child, ids: JailIds) -> None:
    """Map an ordinary user's child's user namespace. Raises `HostError`."""
    for program, lines in ((ids.newgidmap, ids.gid_map), (ids.newuidmap, ids.uid_map)):
        command = [str(program), str(child.process.pid), *(str(n) for line in lines for n in line)]
        environment = {"PATH": "/usr/bin:/bin"}
        try:
            subprocess.run(
                command, capture_output=True, check=True, timeout=_MAP_TIMEOUT_S, env=environment
            )
        except (OSError, subprocess.SubprocessError) as exc:
            said: bytes = getattr(exc, "stderr", b"") or str(exc).encode()
            problem = printable(said.strip(), max_chars=300)
            what = f"the host gives this user no ids for a range: {problem}"
            hint = "`belljar doctor` says what this user needs"
            raise HostError(what, where=str(program), hint=hint) from exc
