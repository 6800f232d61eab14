"""A container: OCI runtime and guest agent in our jail."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import anyio.to_thread

from belljar.dataclass import asdict, dataclass, field, replace
from belljar.errors import BelljarError, CellError, host_errors
from belljar.events import Event, Kind, Recorder, note
from belljar.image.store import Image
from belljar.isolation import cgroup
from belljar.isolation.identity import hold_range
from belljar.isolation.jail import JailEnd, find_agent
from belljar.isolation.oci.trees import ImageTree, ensure_tree, inner_tmp
from belljar.isolation.program_root import STORE_HINT, ProgramRoot, ensure_runtime_root
from belljar.isolation.renewal import GivenPort, Renewal, renew
from belljar.isolation.sandbox import Sandbox, SandboxSpec, elapsed_ms, owned, recorded_lifetime
from belljar.isolation.survivors import Destruction
from belljar.plan.jail import JailMount
from belljar.plan.model import OciPlan
from belljar.plan.oci import BUNDLE, ID_COUNT, OciCell, OciShape, oci_config, runtime_argv
from belljar.process import PROC, is_alive
from belljar.store.journal import new_cell_id
from belljar.store.locks import claimed
from belljar.units import format_size

if TYPE_CHECKING:
    from belljar.isolation.oci.trace import Trace
    from belljar.isolation.touches import FileWatch

_READY_DEADLINE_S: Final = 30.0
_ATTACH_DEADLINE_S: Final = 20.0
# The default devices of the OCI runtime specification, without console and ptmx.
_DEVICES: Final = tuple(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")
)
# The runtime's own state needs some 100 KiB; what it is tricked to write must not fill the host.
_SMALL_BYTES: Final = 16 << 20
# Else a tmpfs has an inode for every second page of the host's memory (tmpfs(5)).
_SMALL_INODES: Final = 1024
# overlayfs needs its upper and work directories on one file system: both are in here.
_LAYER: Final = "/up"
_ROOT: Final = OciCell(hostname="").root
_TMP: Final = "/tmp"  # noqa: S108 - the jail's
_WEIGHTS: Final = "/run/w"
# All that the runtime gets; nothing of the owner's environment.
_ENVIRONMENT: Final = (
    ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/run"),
    ("TMPDIR", _TMP),
)
# The launcher's last line is on its way when its process has ended.
_FINAL_STATUS_TIMEOUT_S: Final = 1.0
# runc 1.1 can't seal its copy of itself (ETXTBSY) while another start still holds it open.
_MAX_ATTEMPTS: Final = 5
# The guest agent and its helper are none of the workload's.
_AGENTS_PROCESSES: Final = 2

# runc copies itself into memory and seals the copy. Under load, other users of its pages may keep
# the kernel from sealing for longer than it waits (memfd_wait_for_pins, 150 ms). runc 1.1, then 1.2
# and later.
BUSY_SEALS: Final = (
    "could not ensure we are a cloned binary: device or resource busy",
    "fcntl(f_add_seals): device or resource busy",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec(SandboxSpec):
    shape: OciShape
    root: ProgramRoot
    tree: ImageTree
    renewal: Renewal = field(default_factory=Renewal)
    port: GivenPort | None = None
    weights: Path | None = None
    is_traced: bool = False


class Container(Sandbox):
    def __init__(self, spec: ContainerSpec, home: Path, recorder: Recorder | None = None) -> None:
        self.spec, self.directories = spec, (home / "cells" / spec.cell_id,)
        self._is_gvisor = spec.shape.runtime.kind == "runsc"
        self._user_namespace = None if spec.port is None else spec.port.user_namespace
        self._trace: Trace | None = None
        self._is_full = False
        self._agent_pid: int | None = None
        self.agent, self._theirs = socket.socketpair()
        identity = hold_range(is_nested=self._user_namespace is not None)
        super().__init__(spec, identity=identity, home=home, recorder=recorder)

    async def start(self) -> None:
        await anyio.to_thread.run_sync(self._make_files)
        spec = self.spec
        network: Literal["", "plain", "covered"] = "covered" if self._is_gvisor else "plain"
        jail = replace(
            self.jail_spec(spec.root),
            ids=self.identity.ids,
            mounts=self.jail_mounts(),
            keep_capabilities=True,
            init=True,
            network="" if spec.port is None else network,
            environment=_ENVIRONMENT,
        )
        argv = runtime_argv(
            spec.shape,
            spec.root.program,
            has_port=spec.port is not None,
            trace="" if self._trace is None else self._trace.config_path,
        )
        try:
            stdin_fd, below = self._theirs.fileno(), self._user_namespace
            self.start_program(jail, argv, stdin_fd=stdin_fd, user_namespace=below)
        finally:
            self._theirs.close()
        if spec.port is not None:
            await self._attach(spec.port)
        began = time.monotonic()
        try:
            renewed = await self._greet()
        except CellError as exc:
            raise await self._start_error(exc, time.monotonic() - began) from exc
        await self.wait_running()
        cgroup.set_limits(self.groups, self.limits)  # before anything of the workload's has run
        if not self._is_gvisor and self.host_pid is not None:
            self._agent_pid = find_agent(self.host_pid)
            self._watch_sockets()
        if self._recorder is not None:
            self._recorder.record(renewed)

    def explain(self, end: JailEnd) -> str:
        if self.fatal_oom_kills() > 0:
            limit = format_size(self.limits.memory_max_bytes)
            return f"out of memory: it reached its limit of {limit}"
        what = "gVisor's sentry or the guest agent in it" if self._is_gvisor else "its guest agent"
        return f"{what} ended, or was killed ({end}; no limit is known to be reached)"

    def fatal_oom_kills(self) -> int:
        return super().fatal_oom_kills() + self._is_full

    def refused_forks(self) -> int:
        """Return at least 1 at the inner limit: refusals are unseen."""
        return super().refused_forks() + self._is_crowd(self.count_processes()[1])

    def processes_full(self) -> bool:
        """gVisor's agent counts processes itself."""
        return self._is_crowd(self.count_processes()[0])

    def disk_full(self) -> bool:
        """An ordinary user can't look."""
        try:
            found = os.statvfs(f"/proc/{self.host_pid}/root{_LAYER}")
        except OSError:
            return False
        return not found.f_bavail or not found.f_favail

    async def watch_files(self, paths: Sequence[str]) -> FileWatch:
        if self._is_gvisor:
            from belljar.isolation.oci.trace import watch_sandbox

            return await watch_sandbox(self._trace, paths, self.client.own_reads)
        from belljar.isolation.oci.marks import watch_container

        own_reads = self.client.own_reads
        return await anyio.to_thread.run_sync(watch_container, self.host_pid, paths, own_reads)

    def _make_files(self) -> None:
        self.make(cpu_later=True)
        spec, directory = self.spec, self.directories[0]
        cell = OciCell(
            hostname=spec.renewal.hostname,
            tmp=inner_tmp(spec.tree.root, _ROOT) if self._is_gvisor else "",
            has_port=spec.port is not None,
            weights="" if spec.weights is None else _WEIGHTS,
        )
        config = oci_config(spec.shape, cell)
        what = "a cell's files can't be written"
        with host_errors(what, where=directory, hint=STORE_HINT):
            directory.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
            directory.mkdir(mode=0o711)
            file = directory / "config.json"
            file.write_text(json.dumps(config))
            file.chmod(0o444)
            if spec.is_traced:
                from belljar.isolation.oci.trace import Trace

                self._trace = Trace(directory, self.holds)

    async def _attach(self, port: GivenPort) -> None:
        if (jail := self.jail) is None:
            raise RuntimeError("nothing was started")
        stage = await jail.wait_network()
        try:
            with anyio.fail_after(_ATTACH_DEADLINE_S):
                await port.attach(stage.pid)
        except TimeoutError:
            what = f"the cell's port was not attached in {_ATTACH_DEADLINE_S:.0f} s"
            raise CellError(what, where=f"cell {self.spec.cell_id}") from None
        except BelljarError:
            # One that is dying has no namespaces any more, but lives for a moment.
            end = await anyio.to_thread.run_sync(self.end, _FINAL_STATUS_TIMEOUT_S)
            if end is None and is_alive(stage):
                raise
        jail.go_on()  # or says how the stage ended

    def jail_mounts(self) -> tuple[JailMount, ...]:
        """Return all host files that the jail can see."""
        spec, identity = self.spec, self.identity.jail
        shift = None
        if identity.privileged and identity.uids is not None:
            shift = (spec.tree.first_uid, identity.uids.start, ID_COUNT)
        tmpfs = partial(JailMount, kind="tmpfs", size_bytes=_SMALL_BYTES, inodes=_SMALL_INODES)
        guest, binds = spec.shape.guest, {BUNDLE: self.directories[0], _WEIGHTS: spec.weights}
        return (
            JailMount(kind="proc", target="/proc"),
            JailMount(kind="sysfs", target="/sys"),
            JailMount(kind="cgroup", target="/sys/fs/cgroup"),
            JailMount(kind="tmpfs", target="/dev", size_bytes=1 << 16, inodes=64),
            *(
                JailMount(kind="device", source=Path(path), target=path)
                for path in (*_DEVICES, *spec.shape.devices)
            ),
            tmpfs(
                target=_LAYER,
                size_bytes=guest.disk_bytes,
                inodes=guest.disk_inodes,
                executable=True,
            ),
            JailMount(kind="tree", source=spec.tree.root, target="/tree", shift=shift),
            JailMount(
                kind="overlay", target=_ROOT, lower="/tree", upper=f"{_LAYER}/u", work=f"{_LAYER}/w"
            ),
            tmpfs(target="/run"),
            tmpfs(target=_TMP),
            *(JailMount(kind="bind", source=at, target=to) for to, at in binds.items() if at),
        )

    async def _greet(self) -> Event:
        from belljar.channel.frames import NEEDED_OF_CONTAINER, config_payload

        spec, client = self.spec, self.client
        await client.wait_ready(timeout_s=_READY_DEADLINE_S)
        await client.hello()
        limits, hostname = asdict(spec.shape.guest), spec.renewal.hostname
        await client.configure(config_payload(**limits, hostname=hostname))
        # The link is there already; the guest agent only names the resolver, in a file that a
        # workload may edit without reaching anything more.
        return await renew(
            client, spec.renewal, spec.port, cell_id=spec.cell_id, needed=NEEDED_OF_CONTAINER
        )

    async def _start_error(self, error: CellError, waited_s: float) -> BelljarError:
        runtime = self.spec.shape.runtime
        left_s = max(_READY_DEADLINE_S - waited_s, _FINAL_STATUS_TIMEOUT_S)
        how = "it neither started the container nor ended in time"
        with anyio.move_on_after(left_s):
            try:
                await self.wait_running()
                how = "it started the container, but its guest agent did not come up: "
                how += self.cause_of_death() or error.what
            except CellError as failure:
                how = failure.what
            except BelljarError as failure:
                return failure
        if (words := self.diagnosis()) not in how:
            how += f"; it printed: {words}"
        return CellError(
            f"no container by {runtime.name} {runtime.version}: {how}",
            where=f"cell {self.cell_id}",
            hint="install another version of it, or use another tier; `belljar doctor` tries each",
        )

    def _watch_sockets(self) -> None:
        with _lock:
            is_first = not _watched
            _watched[self.cell_id] = self
            if is_first:  # one thread looks at all cells
                threading.Thread(target=_look_at_sockets, name="sockets", daemon=True).start()

    def end_if_sockets_full(self) -> None:
        """No control group counts what waits in netlink and raw sockets."""
        max_bytes = self.limits.memory_max_bytes // cgroup.SOCKETS_SHARE
        if self._agent_pid and held_bytes(self._agent_pid, max_bytes) > max_bytes:
            self._is_full = True
            self.kill()

    def _is_crowd(self, count: int) -> bool:
        return not self._is_gvisor and count >= self.spec.shape.guest.processes + _AGENTS_PROCESSES

    async def unmake(self) -> Destruction:
        try:
            await self.client.aclose()
        finally:
            destruction = await super().unmake()
        return destruction

    def _release(self) -> None:
        with _lock:
            _watched.pop(self.cell_id, None)
        self._theirs.close()
        self.agent.close()
        if self._trace is not None:
            self._trace.close()


# Long beside a look (some 0.1 ms), short beside what a processor fills in it.
_PERIOD_S: Final = 0.1
# The files of proc_pid_net(5), and the base of their numbers; all have it in the fifth column. The
# kernel charges a group for what waits in TCP, UDP and local sockets, in no others.
_FILES: Final = {"netlink": 10, "raw": 16, "raw6": 16}
_COLUMN: Final = 4
# Of each, some 2,500 sockets: more would take this process's time, and counts as too much.
_MAX_READ_BYTES: Final = 256 << 10
_watched: Final = dict[str, Container]()
_lock: Final = threading.Lock()


def held_bytes(agent: int, max_bytes: int) -> int:
    """Return the bytes that wait, or more than `max_bytes`."""
    total = 0
    for name, base in _FILES.items():
        with (
            suppress(OSError, ValueError, IndexError),
            (PROC / f"{agent}/net/{name}").open("rb") as file,
        ):
            listed = file.read(_MAX_READ_BYTES)
            if len(listed) == _MAX_READ_BYTES:
                return max_bytes + 1
            words = (line.split(None, _COLUMN + 1)[_COLUMN] for line in listed.splitlines()[1:])
            total += sum(int(word.rpartition(b":")[2], base) for word in words)
    return total


def _look_at_sockets() -> None:
    while True:
        with _lock:
            if not _watched:  # the next one starts another thread
                return
            cells = tuple(_watched.values())
        for each in cells:
            each.end_if_sockets_full()
        time.sleep(_PERIOD_S)


async def start_container(
    spec: ContainerSpec, *, home: Path, owner: AsyncExitStack, recorder: Recorder | None = None
) -> Container:
    """Start it, in five attempts at most. Raises `HostError`, `CellError`."""
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        container, began = Container(spec, home, recorder), time.monotonic()
        try:
            async with owned(container, owner):
                try:
                    await container.start()
                except CellError:
                    words = container.diagnosis().lower()
                    is_busy = any(busy in words for busy in BUSY_SEALS)
                    container.may_retry = is_busy and attempt < _MAX_ATTEMPTS
                    raise
        except BelljarError as exc:
            if container.is_retried:
                continue
            container.raise_if_killed(exc)
            raise
        container.timings_ms["total"] = elapsed_ms(began)
        return container
    raise RuntimeError("unreachable: the last attempt returns or raises")


def open_container(
    plan: OciPlan,
    image: Image,
    *,
    home: Path,
    recorder: Recorder,
    planned: Mapping[str, Any],
    cell_id: str | None = None,
    port: GivenPort | None = None,
    part_of: str = "",
    weights: Path | None = None,
) -> AbstractAsyncContextManager[Container]:
    """A container of the plan, ready; destroyed when the block is left.

    `port` is attached before anything hostile runs; None: no network at all.
    No task group or cancel scope is open across the yield.

    Raises `HostError`: this host can't; `CellError`: it could not be made.
    """
    cell_id = cell_id or new_cell_id()

    async def make(owner: AsyncExitStack, held: ExitStack) -> Container:
        tree = await ensure_tree(image, home=home, held=held)
        if weights is not None:
            held.enter_context(claimed(weights))
        runtime = plan.oci.runtime
        root = ensure_runtime_root(home, runtime)
        words = {"runtime": f"{runtime.name} {runtime.version}", "tree": image.digest}
        note(recorder, Kind.CELL_STARTING, cell_id, **words)
        spec = ContainerSpec(
            cell_id=cell_id,
            kind="cell",
            shape=plan.oci,
            limits=plan.jail,
            controllers=plan.jail_controllers,
            memory_by_rlimit=plan.memory_by_rlimit,
            root=root,
            tree=tree,
            port=port,
            part_of=part_of,
            weights=None if weights is None else weights / "data",
            is_traced=bool(plan.policy.decoys) and runtime.kind == "runsc",
        )
        container = await start_container(spec, home=home, owner=owner, recorder=recorder)
        duration_ms = round(container.timings_ms["total"], 1)
        note(recorder, Kind.CELL_STARTED, cell_id, duration_ms=duration_ms)
        return container

    return recorded_lifetime(recorder, cell_id, planned, make)
