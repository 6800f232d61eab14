"""The real microVM: jailed, cloned, renewed, killed, reaped; and what goes wrong on the way."""

# ruff: noqa: ASYNC220, ASYNC221, PT012 - these tests start and look at processes and files; nothing
# else runs on their loop

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.conftest import copy_store
from tests.fakes.recorder import MemoryRecorder
from tests.integration.microvm_owner import parts
from tests.machine import PATIENCE_S, Templates, control_groups

from belljar.channel import ExecRequest, PtySize
from belljar.errors import CellError, HostError
from belljar.events import Kind
from belljar.image.kernel import Kernel
from belljar.image.store import Image
from belljar.isolation.microvm import guest_files
from belljar.isolation.microvm import template as template_module
from belljar.isolation.microvm.clone import open_vm
from belljar.isolation.microvm.template import ensure_template
from belljar.isolation.microvm.vmm import Vmm
from belljar.isolation.proofs import boots_under
from belljar.plan.model import MicrovmPlan
from belljar.policy.limits import Resources

pytestmark = [pytest.mark.vm, pytest.mark.anyio]
Parts = tuple[MicrovmPlan, Image, Kernel]
# For what does not depend on the event loop and takes long.
one_backend = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.fixture(scope="session")
def made_of(vm_home: Path) -> Parts:
    """MicrovmPlan, image and kernel for every cell here."""
    return parts(vm_home)


@pytest.fixture
def own_home(prepared_home: Path, tmp_path: Path) -> Path:
    """A store of this test's own, without a template."""
    return copy_store(prepared_home, tmp_path / "store")


@pytest.fixture
def stocked_home(own_home: Path, templates: Templates) -> Path:
    """The same with the templates that others made; what it makes of them stays in it."""
    templates.take(own_home)
    return own_home


def left_of(home: Path) -> list[str]:
    """Journal entries, half-made templates, scratch files: not what a cell may leave."""
    patterns = ("journal/*", "templates/.making-*", "tmp/*", "cells/*")
    return [str(path) for pattern in patterns for path in home.glob(pattern)]


def templates_in(home: Path) -> list[str]:
    """Their keys, and what else lies there."""
    return sorted(path.name for path in (home / "templates").glob("*"))


def cgroups_of(cell_id: str) -> list[Path]:
    """The cell's control groups, wherever they are mounted."""
    return list(control_groups(cell_id))


def opened(
    home: Path, made: Parts, recorder: MemoryRecorder | None = None
) -> AbstractAsyncContextManager[Vmm]:
    """One machine, without a cell around it."""
    return open_vm(*made, home=home, recorder=recorder or MemoryRecorder(), planned={})


NAMES = (
    "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; head -c16 /dev/urandom | od -An"
    " -tx1; date +%s"
)
SHOWN = (
    "cat /proc/cmdline /proc/sys/kernel/hostname /proc/1/cmdline; ls /sys/class /dev; env; cat"
    " /proc/mounts"
)


@pytest.mark.promise("2.2", "3.1")
@pytest.mark.thorough_in("trio")
async def test_a_clone_is_a_new_machine(vm_home: Path, made_of: Parts) -> None:
    """Two clones of one template share nothing that names or seeds a machine, have the host's
    clock, and leave nothing. Neither the kernel's command line, nor its devices, nor its
    environment say whose guest it is."""
    recorder, seen = MemoryRecorder(), []
    for _ in range(2):
        async with opened(vm_home, made_of, recorder) as vm:
            before_s = time.time()
            seen.append((await shell(vm, NAMES)).decode().split("\n"))
            assert vm.emulated
            assert before_s - 2 < int(seen[-1][4]) < time.time() + 2
            assert not vm.cause_of_death()
            shown = (await vm.client.exec(ExecRequest(argv=("/bin/sh", "-c", SHOWN)))).stdout
            ours = (b"belljar", b"sandbox", b"inspect", b"eval", vm.cell_id.encode())
            assert not [word for word in ours if word in shown.lower()], shown
    assert all(one != other for one, other in zip(seen[0][:4], seen[1][:4], strict=True)), seen
    ends = [event.data for event in recorder.events if event.kind is Kind.CELL_DESTROYED]
    assert [data["clean"] for data in ends] == [True, True]
    assert left_of(vm_home) == []


async def shell(
    vm: Vmm, script: str, env: Mapping[str, str] | None = None, pty: PtySize | None = None
) -> bytes:
    """What a script says that ends well."""
    outcome = await vm.client.exec(
        ExecRequest(argv=("/bin/sh", "-c", script), env=env or {}, pty=pty)
    )
    assert (outcome.code, outcome.stderr) == (0, b""), outcome
    return outcome.stdout


LOOK = (
    "for n in /proc/self/fd/*; do readlink $n; done | sed 's/[0-9]//g'; tr '\\0' '\\n'"
    " </proc/self/environ | sort; grep -E 'Sig[BIC]|Seccomp:|NoNew|Cap' /proc/self/status; set --"
    " /proc/[0-9]*; echo $#; ulimit -a; umask"
)


async def _a_command(vm: Vmm) -> None:
    """What it has is what a later one has: descriptors, signals, rights, filter, neighbours."""
    assert await shell(vm, LOOK) == await shell(vm, LOOK)


async def _a_command_with_input(vm: Vmm) -> None:
    given, request = b"given" * 9000, ExecRequest(argv=("/usr/bin/cat",), user="65534")
    assert (await vm.client.exec(request, input=given)).stdout == given


async def _a_terminal(vm: Vmm) -> None:
    look = "tty; test -t 0 && test -t 1 && test -t 2; ls -l /proc/self/fd"
    said = await shell(vm, look, pty=PtySize(rows=24, cols=80))
    assert said.startswith(b"/dev/pts/"), said
    assert b"pipe:" not in said, said


async def _a_large_request(vm: Vmm) -> None:
    assert await shell(vm, "printf %s ${#A}", env={"A": "x" * 60_000}) == b"60000"


async def _a_file_in(vm: Vmm) -> None:
    await vm.client.write_file("/tmp/a", b"kept" * 100_000)
    assert await shell(vm, "wc -c < /tmp/a") == b"400000\n"


async def _a_file_out(vm: Vmm) -> None:
    assert b"root:" in await vm.client.read_file("/etc/passwd", max_bytes=1 << 20)


async def _no_such_program(vm: Vmm) -> None:
    found = await vm.client.exec(ExecRequest(argv=("/no/such",)))
    assert found.not_started_errno is not None
    await shell(vm, "true")


async def _a_timeout(vm: Vmm) -> None:
    request = ExecRequest(argv=("/usr/bin/sleep", "60"), timeout_s=0.5)
    assert (await vm.client.exec(request)).timed_out
    await shell(vm, "true")


MORE = (_a_command_with_input, _a_large_request, _a_file_out, _a_timeout)
FIRST = (
    *(_a_command, _a_terminal, _a_file_in, _no_such_program),
    *(pytest.param(more, marks=pytest.mark.thorough) for more in MORE),
)


@pytest.mark.promise("3.1")
@one_backend
@pytest.mark.parametrize("operation", FIRST, ids=lambda one: one.__name__.strip("_"))
async def test_whatever_comes_first(
    vm_home: Path, made_of: Parts, operation: Callable[[Vmm], Awaitable[None]]
) -> None:
    """A clone's first operation may be of any kind and size, and is as any later one."""
    async with opened(vm_home, made_of) as vm:
        await operation(vm)


@pytest.mark.thorough_in("trio")
async def test_killed_mid_command(vm_home: Path, made_of: Parts) -> None:
    """The command raises `CellError`, the cause names the signal, and nothing is left."""
    async with opened(vm_home, made_of) as vm:
        with pytest.raises(CellError):
            async with vm.client.open_exec(ExecRequest(argv=("/bin/sleep", "60"))) as running:
                assert vm.host_pid is not None
                os.kill(vm.host_pid, signal.SIGKILL)
                await running.wait()
        assert vm.cause_of_death() == "the VMM was killed by signal SIGKILL"
        assert (await vm.destroy()).clean
    assert left_of(vm_home) == []


@pytest.mark.thorough_in("trio")
async def test_cancelled_while_it_opens(vm_home: Path, made_of: Parts) -> None:
    """At any moment it leaves nothing: no process, journal entry or control group."""
    await ensure_template(*made_of, home=vm_home, recorder=MemoryRecorder())
    for timeout_ms in (5, 20, 45, 80, 110):
        recorder = MemoryRecorder()
        with anyio.move_on_after(timeout_ms / 1000):
            async with opened(vm_home, made_of, recorder):
                pass
        assert left_of(vm_home) == []
        assert not any(cgroups_of(str(event.cell_id)) for event in recorder.events[:1])


@pytest.mark.promise("6.1")
@pytest.mark.thorough_in("trio")
async def test_planted_survivors_are_found_and_killed(vm_home: Path, made_of: Parts) -> None:
    """A process that carries the cell's id, and one that only shares its control group, outlive the
    kill: they make the destruction unclean, and are ended by it."""
    sleeps = ["/bin/sh", "-c", "read x"]
    async with opened(vm_home, made_of) as vm:
        named = subprocess.Popen([*sleeps, "--cell", vm.cell_id], stdin=subprocess.PIPE)
        grouped = subprocess.Popen(sleeps, stdin=subprocess.PIPE)
        with named, grouped:
            groups = [path / "cgroup.procs" for path in cgroups_of(vm.cell_id)]
            if os.geteuid() == 0:
                next(file for file in groups if file.exists()).write_text(str(grouped.pid))
            destruction = await vm.destroy()
            assert named.wait(timeout=PATIENCE_S) == -signal.SIGKILL
            if os.geteuid() == 0:
                assert grouped.wait(timeout=PATIENCE_S) == -signal.SIGKILL
            grouped.kill()
        assert cgroups_of(vm.cell_id) == []
    found = [what for what in destruction.survivors if f"process {named.pid}" in what]
    assert any("started for the cell" in what for what in found)
    is_found = any(f"process {grouped.pid}" in what for what in destruction.survivors)
    assert is_found == (os.geteuid() == 0)


HOG = ("dd", "if=/dev/zero", "of=/dev/null", "bs=400M", "count=1")  # in memory at once


@pytest.mark.promise("8.1")
@one_backend
@pytest.mark.root
async def test_memory_is_bounded_by_the_host(vm_home: Path, made_of: Parts) -> None:
    """Beyond the jail's bound the host's kernel kills the VMM, and the cause says so."""
    plan, image, kernel = made_of
    small = replace(plan, jail=replace(plan.jail, memory_max_bytes=160 << 20))
    await ensure_template(plan, image, kernel, home=vm_home, recorder=MemoryRecorder())
    async with opened(vm_home, (small, image, kernel)) as vm:
        with pytest.raises(CellError):
            await vm.client.exec(ExecRequest(argv=HOG))
        why = "the VMM was killed by signal SIGKILL (out of memory in its control group)"
        assert vm.cause_of_death() == why
        assert (await vm.destroy()).clean


@pytest.mark.promise("3.1")
@pytest.mark.parametrize(
    "damage",
    ["memory", *(pytest.param(it, marks=pytest.mark.thorough) for it in ("state", "unrestorable"))],
)
@one_backend
async def test_a_damaged_template_is_rebuilt_once(stocked_home: Path, damage: str) -> None:
    """Whatever was changed: the cell comes up from a template made again, and that is on record. One
    that does not restore though its digests fit fails its cell, and is made again for the next."""
    made = parts(stocked_home)
    template = await ensure_template(*made, home=stocked_home, recorder=MemoryRecorder())
    directory = template.memory.parent
    own = directory / "own"  # the file may be other stores' too
    subprocess.run(["cp", "--sparse=always", template.memory, own], check=True)
    own.replace(template.memory)
    for path in directory.iterdir():
        path.chmod(0o644)
    if damage == "memory":
        with template.memory.open("r+b") as file:
            file.seek(1 << 20)
            file.write(b"changed")
    else:
        (directory / "state").write_bytes(b"not a state" * 1000)
    if damage == "unrestorable":
        description = json.loads((directory / "template.json").read_text())
        description["state_sha256"] = hashlib.sha256(b"not a state" * 1000).hexdigest()
        (directory / "template.json").write_text(json.dumps(description))
    recorder = MemoryRecorder()
    if damage == "unrestorable":
        with pytest.raises(CellError, match="could not be restored"):
            async with opened(stocked_home, made, recorder):
                raise AssertionError("it was restored")
    async with opened(stocked_home, made, recorder) as vm:
        outcome = await vm.client.exec(ExecRequest(argv=("/bin/true",)))
        assert outcome.code == 0
    kinds = recorder.kinds()
    assert (kinds.count(Kind.TEMPLATE_REJECTED), kinds.count(Kind.TEMPLATE_BUILT)) == (1, 1)
    assert left_of(stocked_home) == []


@one_backend
async def test_a_guest_kernel_panic_is_named(
    vm_home: Path, made_of: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that and of what, and no half-made template is left."""
    good, before = guest_files.read_guest_parts(made_of[2]), templates_in(vm_home)
    broken = replace(good, agent=good.modules[0][1], digest=hashlib.sha256(b"broken").hexdigest())
    monkeypatch.setattr(template_module, "read_guest_parts", lambda _kernel, **_: broken)
    with pytest.raises(CellError, match=r"kernel panicked.*init"):
        await ensure_template(*made_of, home=vm_home, recorder=MemoryRecorder())
    assert left_of(vm_home) == []
    assert templates_in(vm_home) == before


@pytest.mark.promise("8.1")
@one_backend
async def test_a_machine_too_small_for_its_workload_is_refused(
    vm_home: Path, made_of: Parts
) -> None:
    """Where the kernel's own needs would come out of what the workload may have, no limit could be
    met: the agent says so, and nothing of it is left."""
    plan, image, kernel = made_of
    tight = replace(plan.vm, ram_mib=(plan.guest.memory_max_bytes >> 20) + 48)
    with pytest.raises(CellError, match="no room for its kernel"):
        await ensure_template(
            replace(plan, vm=tight), image, kernel, home=vm_home, recorder=MemoryRecorder()
        )
    assert left_of(vm_home) == []


@pytest.mark.promise("8.1")
@pytest.mark.thorough
@one_backend
async def test_a_large_machine_has_room_for_its_workload(own_home: Path) -> None:
    """What the kernel needs grows with the machine; so does what it is given: the agent, which
    would refuse, does not."""
    large = Resources(memory_bytes=3 << 30, disk_bytes=256 << 20)
    async with opened(own_home, parts(own_home, large)) as vm:
        assert await shell(vm, "echo fine") == b"fine\n"


@pytest.mark.promise("3.1")
@one_backend
@pytest.mark.thorough
async def test_two_at_once_build_one_template(own_home: Path) -> None:
    """One of them makes it, the other waits for it."""
    recorder, made = MemoryRecorder(), parts(own_home)

    async def ensure() -> None:
        await ensure_template(*made, home=own_home, recorder=recorder)

    async with anyio.create_task_group() as both:
        both.start_soon(ensure)
        both.start_soon(ensure)
    assert recorder.kinds().count(Kind.TEMPLATE_BUILT) == 1
    assert left_of(own_home) == []


@one_backend
async def test_an_accelerator_is_proven_by_a_guest(vm_home: Path, made_of: Parts) -> None:
    """Emulation is proven; KVM is what it turns out to be here, with a reason if it fails."""
    emulated = await boots_under("tcg", made_of[2], home=vm_home, deadline_s=60)
    assert (emulated.works, emulated.reason) == (True, "")
    with contextlib.suppress(HostError):  # no /dev/kvm here at all
        hardware = await boots_under("kvm", made_of[2], home=vm_home)
        assert hardware.works == (hardware.reason == "")
    assert left_of(vm_home) == []
