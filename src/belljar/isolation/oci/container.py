"""A container: an OCI runtime started in our jail, the guest agent in its container, made ready,
and unmade with proof.

What the runtime makes (namespaces, mounts, its state) is in the jail's own namespaces: killing the
jail's pid 1 ends all of it, and the kernel takes it away.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, Literal

import anyio
import anyio.to_thread

from belljar.channel import GuestClient, RenewedBit
from belljar.dataclass import dataclass
from belljar.errors import BelljarError, CellError, HostError
from belljar.events import Recorder
from belljar.isolation.identity import hold_range
from belljar.isolation.jailed import Jailed, OwnedResources, raise_if_killed
from belljar.isolation.launch_failures import RuntimeFailedError
from belljar.isolation.lifetime import record_destroyed
from belljar.isolation.oci.runtime_root import CONFIG_PATH
from belljar.isolation.oci.trace import Trace
from belljar.isolation.oci.trees import Tree, inner_tmp
from belljar.isolation.oci.words import (
    cause_of_death,
    explain_runtime,
    is_busy_sealing,
    said,
)
from belljar.isolation.port import Port
from belljar.isolation.program_root import STORE_HINT, ProgramRoot
from belljar.isolation.renewal import (
    NEEDED_OF_CONTAINER,
    Renewal,
    judge,
    network_of,
    now_ns,
    renewed_names,
)
from belljar.isolation.survivors import Destruction
from belljar.plan.jail import JailLimits, JailMount, JailSpec
from belljar.plan.oci import ID_COUNT, OciCell, OciShape, oci_config, runtime_argv
from belljar.process import is_alive
from belljar.store.journal import EntryKind

_READY_DEADLINE_S: Final = 30.0
_ATTACH_DEADLINE_S: Final = 20.0
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_SMALL_BYTES: Final = 16 << 20
_SMALL_INODES: Final = 1024
LAYER: Final = "/up"
_ROOT: Final = OciCell(hostname="").root
_STATE: Final = "/run/r"
_BUNDLE: Final = str(Path(CONFIG_PATH).parent)
_CONTAINER_NAME: Final = "c"
_ENVIRONMENT: Final = (
    ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/run"),
    ("TMPDIR", "/tmp"),  # noqa: S108 - the jail's
)
_LAST_WORD_S: Final = 1.0
_MAX_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container: what it is made of and what holds it."""

    cell_id: str
    kind: EntryKind
    shape: OciShape
    limits: JailLimits
    controllers: tuple[str, ...]
    memory_by_rlimit: bool
    root: ProgramRoot
    tree: Tree
    hostname: str
    directory: Path
    port: Port | None = None
    is_traced: bool = False  # gVisor: see isolation.oci.trace


class JailedContainer:
    """A container in its jail, from the journal's entry to the proof.

    Made only by `start_container`.
    """

    def __init__(self, spec: ContainerSpec, home: Path) -> None:
        self.spec = spec
        self.timings_ms: dict[str, float] = {}
        self.attempts = 1
        self.trace: Trace | None = None
        self._ours, self._theirs = socket.socketpair()
        mine = OwnedResources(
            cell_id=spec.cell_id,
            kind=spec.kind,
            limits=spec.limits,
            controllers=spec.controllers,
            directories=(spec.directory,),
            part_of="" if spec.port is None else spec.port.range_id,
        )
        with ExitStack() as undo:
            undo.callback(self._let_go)
            self.jailed = Jailed(
                mine,
                home,
                hold_range(is_nested=self._user_namespace() is not None),
                let_go=self._let_go,
            )
            undo.pop_all()
        self.client = GuestClient.from_socket(self._ours)

    async def bring_up(self, renewal: Renewal) -> list[str]:
        """Journal, create, start, greet, renew; what the guest agent says it renewed.

        Raises `HostError` or `CellError`.
        """
        started = time.monotonic()
        await anyio.to_thread.run_sync(self._make)
        self.timings_ms["prepare"] = _since(started)
        self._start()
        if self.spec.port is not None:
            await self._connect(self.spec.port)
        try:
            done = await self._greet(renewal)
        except CellError as exc:
            raise await self._explained(exc, time.monotonic() - started) from exc
        await self.jailed.wait_running()
        self.jailed.limit_cpu()  # before anything of the workload's has run
        self.timings_ms["total"] = _since(started)
        return done

    async def destroy(self) -> Destruction:
        """Kill, look for survivors, forget the cell. Idempotent, shielded from cancellation."""
        if self.jailed.destruction is None:
            with anyio.CancelScope(shield=True):
                await self.client.aclose()
        return await self.jailed.destroy()

    def _make(self) -> None:
        self.jailed.make(cpu_later=True)
        directory = self.spec.directory
        cell = OciCell(
            hostname=self.spec.hostname, tmp=self._tmp(), has_port=self.spec.port is not None
        )
        config = oci_config(self.spec.shape, cell)
        try:
            directory.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
            directory.mkdir(mode=0o711)
            file = directory / "config.json"
            file.write_text(json.dumps(config))
            file.chmod(0o444)
            if self.spec.is_traced:
                self.trace = Trace(directory, _BUNDLE, self.jailed.holds)
        except OSError as exc:
            hint = STORE_HINT
            raise HostError(
                f"a cell's files can't be written: {exc.strerror}", where=str(directory), hint=hint
            ) from exc

    def _tmp(self) -> str:
        return (
            inner_tmp(self.spec.tree.root, _ROOT) if self.spec.shape.runtime.kind == "runsc" else ""
        )

    def _start(self) -> None:
        spec, held = self.spec, self.jailed.identity
        jail = JailSpec(
            cell_id=spec.cell_id,
            owner_pid=os.getpid(),
            root=spec.root.root,
            binds=(),
            identity=held.jail,
            limits=spec.limits,
            cgroups=self.jailed.groups.directories,
            memory_by_rlimit=spec.memory_by_rlimit,
            ids=held.ids,
            mounts=self._mounts(),
            keep_capabilities=True,
            init=True,
            network=self._network(),
            environment=_ENVIRONMENT,
        )
        argv = runtime_argv(
            spec.shape.runtime,
            spec.root.program,
            state=_STATE,
            bundle=_BUNDLE,
            name=_CONTAINER_NAME,
            has_port=spec.port is not None,
            trace="" if self.trace is None else self.trace.config_path,
        )
        try:
            self.jailed.start(
                jail,
                argv,
                kept=(),
                stdin_fd=self._theirs.fileno(),
                user_namespace=self._user_namespace(),
            )
        finally:
            self._theirs.close()

    def _network(self) -> Literal["", "plain", "covered"]:
        if self.spec.port is None:
            return ""
        return "covered" if self.spec.shape.runtime.kind == "runsc" else "plain"

    def _user_namespace(self) -> int | None:
        return None if self.spec.port is None else self.spec.port.user_namespace

    async def _connect(self, port: Port) -> None:
        """Have the link put into the stage's network namespace, before anything of the runtime's
        runs. Raises `HostError` or `CellError`.
        """
        began = time.monotonic()
        stage = await self.jailed.wait_network()
        try:
            with anyio.fail_after(_ATTACH_DEADLINE_S):
                await port.attach(stage.pid)
        except TimeoutError:
            what = f"the cell's port was not attached in {_ATTACH_DEADLINE_S:.0f} s"
            raise CellError(what, where=f"cell {self.spec.cell_id}") from None
        except BelljarError:
            # One that is dying has no namespaces any more, but lives for a moment.
            if await anyio.to_thread.run_sync(
                self.jailed.last_word, _LAST_WORD_S
            ) is None and is_alive(stage):
                raise
        self.jailed.go_on()  # or says how the stage ended
        self.timings_ms["network"] = _since(began)

    def _mounts(self) -> tuple[JailMount, ...]:
        spec, identity = self.spec, self.jailed.identity.jail
        shift = None
        if identity.privileged and identity.uids is not None:
            shift = (spec.tree.first_uid, identity.uids.start, ID_COUNT)
        layer = JailMount(
            kind="tmpfs",
            target=LAYER,
            size_bytes=spec.shape.disk_bytes,
            inodes=spec.shape.disk_inodes,
            executable=True,
        )
        return (
            JailMount(kind="proc", target="/proc"),
            JailMount(kind="sysfs", target="/sys"),
            JailMount(kind="cgroup", target="/sys/fs/cgroup"),
            JailMount(kind="tmpfs", target="/dev", size_bytes=1 << 16, inodes=64),
            *(
                JailMount(kind="device", source=Path("/dev", name), target=f"/dev/{name}")
                for name in _DEVICES
            ),
            layer,
            JailMount(kind="tree", source=spec.tree.root, target="/tree", shift=shift),
            JailMount(
                kind="overlay", target=_ROOT, lower="/tree", upper=f"{LAYER}/u", work=f"{LAYER}/w"
            ),
            JailMount(kind="tmpfs", target="/run", size_bytes=_SMALL_BYTES, inodes=_SMALL_INODES),
            JailMount(kind="tmpfs", target="/tmp", size_bytes=_SMALL_BYTES, inodes=_SMALL_INODES),  # noqa: S108 - the jail's
            JailMount(kind="bind", source=spec.directory, target=_BUNDLE),
        )

    async def _greet(self, renewal: Renewal) -> list[str]:
        began, shape, port, client = time.monotonic(), self.spec.shape, self.spec.port, self.client
        await client.wait_ready(timeout_s=_READY_DEADLINE_S)
        self.timings_ms["runtime"] = _since(began)
        began = time.monotonic()
        await client.hello()
        await client.configure(
            memory_max_bytes=shape.memory_max_bytes,
            disk_bytes=shape.disk_bytes,
            disk_inodes=shape.disk_inodes,
            processes=shape.processes,
            debugger_calls=shape.debugger_calls,
            hostname=renewal.hostname,
        )
        renewed = await client.renew(
            realtime_ns=now_ns(),
            seed=renewal.seed,
            machine_id=renewal.machine_id,
            boot_id=renewal.boot_id,
            hostname=renewal.hostname,
            network=b"" if port is None else network_of(port.settings),
        )
        # The link is there already; the guest agent only names the resolver, in a file that a
        # workload may edit without reaching anything more.
        needed = NEEDED_OF_CONTAINER if port is None else NEEDED_OF_CONTAINER | RenewedBit.NETWORK
        judge(renewed, where=f"cell {self.spec.cell_id}", needed=needed)
        self.timings_ms["renew"] = _since(began)
        return renewed_names(renewed)

    async def _explained(self, error: CellError, waited_s: float) -> BelljarError:
        """What went wrong, from who knows best: the jail's step, the runtime's status and words, or
        else the silent channel.
        """
        runtime = self.spec.shape.runtime
        where = f"cell {self.spec.cell_id}"
        explain = partial(
            explain_runtime, name=runtime.name, version=self.spec.root.version, where=where
        )
        if self.jailed.jail is None:
            return error
        with anyio.move_on_after(max(_READY_DEADLINE_S - waited_s, _LAST_WORD_S)) as timeout:
            try:
                await self.jailed.wait_running()
            except RuntimeFailedError as failure:
                return explain(failure.how, silent=failure.silent)
            except BelljarError as failure:
                return failure
        if timeout.cancelled_caught:
            hung = f"neither started the container nor ended within {waited_s:.0f} s"
            return explain(hung + said(self.jailed.diagnosis()))
        cause = cause_of_death(
            self.jailed,
            self.spec.limits,
            runtime.kind,
            fatal_oom_kills=self.jailed.count_oom_kills(),
        )
        detail = cause or error.what
        what = f"{runtime.name} {self.spec.root.version} started the container, but its guest agent did not come up: {detail}"
        return CellError(what + said(self.jailed.diagnosis()), where=where)

    def _let_go(self) -> None:
        self._theirs.close()
        self._ours.close()
        if self.trace is not None:
            self.trace.close()


async def start_container(
    spec: ContainerSpec, renewal: Renewal, *, home: Path, recorder: Recorder | None = None
) -> tuple[JailedContainer, list[str]]:
    """Start it and make it ready; and what its guest agent says it renewed.

    A runtime that could not seal its copy of itself is started again, at most five times in all,
    each time in a new jail when nothing of the last is left.

    Raises `HostError` or `CellError`; nothing is left then, and the proof is recorded.
    """
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        container = JailedContainer(spec, home)
        container.attempts = attempt
        try:
            return container, await container.bring_up(renewal)
        except BaseException as exc:
            with anyio.CancelScope(shield=True):
                destruction = await container.destroy()
                failed = isinstance(exc, CellError) and is_busy_sealing(
                    container.jailed.diagnosis()
                )
                if (
                    not (failed and destruction.clean and attempt < _MAX_ATTEMPTS)
                    or container.jailed.killed()
                ):
                    if recorder is not None:
                        record_destroyed(recorder, spec.cell_id, destruction)
                    raise_if_killed(container.jailed, exc)
                    raise
    raise RuntimeError("unreachable: the last attempt returns or raises")


def _since(began: float) -> float:
    return (time.monotonic() - began) * 1000
