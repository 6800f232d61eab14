"""Starts a range's processes, as forks of a shared server. Blocking."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import json_of
from belljar.errors import CellError, HostError, host_errors
from belljar.host.tools import SEARCH_PATH, run_briefly
from belljar.network import ipc
from belljar.network.gateway import config
from belljar.network.owner.dial import Reach
from belljar.network.owner.relay import RunSpending
from belljar.network.stand_ins import modules_of
from belljar.package import PACKAGE_DIR
from belljar.plan.addresses import RangeLayout
from belljar.plan.jail import JailIds
from belljar.plan.network import NetworkPlan
from belljar.plan.obstacles import NETWORK_EXTRA_HINT
from belljar.plan.rules import render_rules
from belljar.process import ProcessId, close_all, identify, signal_name
from belljar.units import printable

# Between two, the kernel's own notices report a change of rules at once.
CHECK_EVERY_S: Final = 5.0
TIMEOUT_S: Final = 30.0
# What the kernel holds longer after a SIGKILL is found by the search for survivors.
END_DEADLINE_S: Final = 5.0
PACKETS: Final = "packets.pcapng"
SERVE: Final = "belljar.network.gateway.serve:serve"
_NAME: Final = "the ranges' fork server"
_START_TIMEOUT_S: Final = 30.0
_END_TIMEOUT_S: Final = 3.0  # Then it is killed.
_ANSWER_TIMEOUT_S: Final = 20.0
HINT_ENDED: Final = (
    "nothing of it runs on: start again; `belljar ledger show last` shows what came before"
)
_MAX_DIAGNOSIS_BYTES: Final = 16 << 10
_running: dict[tuple[int, Path, str], ForkServer] = {}
_running_lock: Final = threading.Lock()
# `-I` keeps the environment and the working directory out; the third argument is the import path.
_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); from belljar.network.fork_server "
    "import main; main(sys.argv[1:])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    process: ProcessId
    pidfd: int

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def wait_ended(self, timeout_s: float) -> bool:
        return bool(wait_readable([self.pidfd], timeout_s))


def wait_readable(fds: Sequence[int], timeout_s: float) -> set[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(timeout_s * 1000)}


@dataclass(frozen=True, slots=True)
class RangeProcesses:
    supervisor: Child
    gateway: Child
    control: socket.socket
    events: socket.socket
    stderr: int
    fork_server: ForkServer

    def close(self) -> None:
        self.control.close()
        self.events.close()
        close_all((self.stderr, self.supervisor.pidfd, self.gateway.pidfd))


class ForkServer:
    def __init__(self, serve: str = SERVE, imports: Sequence[str] = ()) -> None:
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
        hint = "run fewer cells at once, or raise the limit of processes"
        with (
            ExitStack() as undo,
            host_errors(f"{_NAME} can't be started", where=sys.executable, hint=hint),
            theirs,
        ):
            undo.callback(os.close, self._stderr)
            undo.callback(ours.close)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOT, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                env={"LC_ALL": "C.UTF-8"},  # No secret of the owner's environment is inherited.
                cwd="/",
                start_new_session=True,  # Ctrl-C is the owner's to handle
            )
            undo.pop_all()
        self.process = identify(self._process.pid)

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
                    raise CellError(what, where=sys.executable, hint=HINT_ENDED) from exc
                what = f"{_NAME} did not start: {self.diagnosis() or 'it printed nothing'}"
                raise HostError(what, where=sys.executable, hint=NETWORK_EXTRA_HINT) from exc
            self._socket.settimeout(_ANSWER_TIMEOUT_S)
            self._is_ready = True

    def fork(self, roles: Mapping[str, Sequence[int]], imports: Sequence[str] = ()) -> list[Child]:
        """Fork a child per role, all or none. Raises `CellError`."""
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
                raise CellError(what, where=_NAME, hint=HINT_ENDED)
            undo.pop_all()
        return children

    def how_ended(self, child: Child) -> str:
        """Return `exit 1` or `SIGKILL`; "" when unknown."""
        with suppress(CellError), self._lock:
            message, _ = self._ask({"ended": child.process.pid})
            if message["status"] is not None:
                code = os.waitstatus_to_exitcode(int(message["status"]))
                return f"exit {code}" if code >= 0 else signal_name(-code)
        return ""

    def diagnosis(self) -> str:
        return printable(os.pread(self._stderr, _MAX_DIAGNOSIS_BYTES, 0).strip(), max_chars=2000)

    def end(self) -> None:
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
            raise CellError(f"{_NAME} is gone{detail}", where=_NAME, hint=HINT_ENDED) from exc


def _discard(pidfds: Sequence[int]) -> None:
    for pidfd in pidfds:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


@contextmanager
def started_fork_server(
    home: Path, serve: str = SERVE, imports: Sequence[str] = ()
) -> Iterator[ForkServer]:
    """Share the store's fork server, maybe still importing. Raises `HostError`."""
    key = (os.getpid(), home, serve)  # what a fork of this process inherits is its parent's
    with _running_lock:
        fork_server = _running.get(key)
        if fork_server is None or fork_server._process.poll() is not None:
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
    for program, lines in ((ids.newgidmap, ids.gid_map), (ids.newuidmap, ids.uid_map)):
        numbers = (str(number) for line in lines for number in line)
        status, output = run_briefly(str(program), str(child.process.pid), *numbers)
        if status != 0:
            problem = printable(output.strip(), max_chars=300)
            what = f"the host gives this user no ids for a range: {problem}"
            hint = "`belljar doctor` says what this user needs"
            raise HostError(what, where=str(program), hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSpec:
    network: NetworkPlan
    layout: RangeLayout
    directory: Path  # an existing one, for the packet record, which stays
    check_every_s: float = CHECK_EVERY_S  # of the rules, and of the gateway's heartbeat
    # Beyond that, how long a part may be silent, and the supervisor may wait for its owner.
    timeout_s: float = TIMEOUT_S
    serve: str = SERVE  # `module:function` of the gateway
    reach: Reach = field(default_factory=Reach)
    spending: RunSpending = field(default_factory=RunSpending)
    guard: config.GuardConfig | None = None
    # Decoy services' secrets, by stand-in
    services: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)


def fork_pair(
    fork_server: ForkServer,
    spec: RangeSpec,
    held: Sequence[int],
    *,
    supervisor_uid: int | None,
    gateway_uid: int | None,
) -> RangeProcesses:
    """Return a pair waiting for `go`; the supervisor keeps `held` open."""
    directories = _directories(spec.network, gateway_uid)
    nft = shutil.which("nft", path=f"{os.environ.get('PATH', '')}:{SEARCH_PATH}")
    if nft is None:
        hint = "run `belljar setup`, or install the package nftables"
        raise HostError("nft can't be found", where="PATH", hint=hint)
    task: dict[str, Any] = {"nft": str(Path(nft).resolve()), "uid": supervisor_uid}
    task |= {"check_every_s": spec.check_every_s, "timeout_s": spec.timeout_s}
    task |= {"layout": json_of(spec.layout), "network": json_of(spec.network)}

    with ExitStack() as theirs, ExitStack() as ours:

        def closed_by(stack: ExitStack, fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        def pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
            one, other = ipc.pair()
            return stack.enter_context(one), theirs.enter_context(other)

        control, supervisors_control = pair(ours)
        events, gateways_events = pair(ours)
        to_gateway, to_supervisor = pair(theirs)
        stderr, stderr_write = map(closed_by, (ours, theirs), os.pipe())
        rules, supervisor_document, gateway_document = (
            closed_by(theirs, os.memfd_create("document", os.MFD_CLOEXEC)) for _ in range(3)
        )
        # A record is written once.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        what, hint = "the packet record can't be made", "free some space there"
        with host_errors(what, where=spec.directory, hint=hint):
            file = closed_by(theirs, os.open(spec.directory / PACKETS, flags, 0o600))
        supervisors = [supervisors_control.fileno(), to_gateway.fileno(), supervisor_document]
        gateways = [gateways_events.fileno(), to_supervisor.fileno(), gateway_document]
        given = {
            "supervisor": [*supervisors, stderr_write, rules, file, *held],
            "gateway": [*gateways, stderr_write],
        }
        kinds = [item.kind for item in spec.network.stand_ins if not item.is_target]
        kinds += ["catch_all"] if spec.layout.catch_all is not None else []
        supervisor, gateway = fork_server.fork(given, modules_of(kinds))
        for child in (supervisor, gateway):
            ours.callback(os.close, child.pidfd)
            ours.callback(child.wait_ended, END_DEADLINE_S)  # no journal entry names it yet
            ours.callback(child.kill)
        # They read these when they are told to go: meanwhile both have their modules to import.
        ipc.fill(rules, render_rules(spec.layout, spec.network))
        ipc.fill(supervisor_document, task)
        ipc.fill(gateway_document, _for_gateway(spec, gateway_uid, directories))
        ours.pop_all()  # they are the caller's
        return RangeProcesses(supervisor, gateway, control, events, stderr, fork_server)


def _for_gateway(spec: RangeSpec, uid: int | None, directories: dict[str, str]) -> dict[str, Any]:
    network = spec.network
    inside = (
        replace(
            item,
            directory=Path(config.FILES_ROOT, item.id) if item.id in directories else None,
            settings={**item.settings, **spec.services.get(item.id, {})},
        )
        for item in network.stand_ins
        if not item.is_target
    )
    nothing: dict[str, Any] = {"names": (), "ports": (), "directory": None, "all_ports": False}
    neighbours = (  # What the gateway needs of a cell: its networks.
        replace(cell, settings={"networks": sorted(cell.networks)}, **nothing)
        for cell in network.reached_cells
    )
    has_encrypted = any({*upstream.ports} - {config.HTTP_PORT} for upstream in network.upstreams)
    document = config.GatewayConfig(
        layout=spec.layout,
        stand_ins=(*inside, *neighbours, *map(config.as_stand_in, network.upstreams)),
        authorities=spec.reach.read_authorities() if has_encrypted else "",
        bounds=config.Bounds(
            connections=network.bounds.connections,
            connections_per_cell=network.bounds.connections_per_cell,
            cell_connections=network.bounds.cell_connections,
            tls_connections=min(network.bounds.connections, 2_000),
            alive_every_s=spec.check_every_s,
        ),
        guard=spec.guard,
    )
    about = {"uid": uid, "directories": directories}
    memory_bytes = network.bounds.gateway_memory_bytes
    return {"config": json_of(document), "memory_bytes": memory_bytes, **about}


def _directories(network: NetworkPlan, uid: int | None) -> dict[str, str]:
    inside = (item for item in network.stand_ins if not item.is_target)
    found = {item.id: item.directory for item in inside if item.directory is not None}
    for name, path in found.items():
        if not path.is_dir():
            what = f"the files of the stand-in {name} are missing"
            hint = "put them there; `belljar policy check FILE` looks at them again"
            raise HostError(what, where=str(path), hint=hint)
        # Root's gateway has a uid of its own: it would answer with errors instead of the files.
        if uid is not None and path.stat().st_mode & 0o005 != 0o005:
            what = f"the gateway, whose uid is its own, can't read files of the stand-in {name}"
            raise HostError(what, where=str(path), hint=f"chmod -R o+rX {path}")
    return {name: str(path) for name, path in found.items()}
