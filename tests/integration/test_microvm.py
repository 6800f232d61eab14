"""The real microVM: jailed, cloned, renewed, killed, reaped; and what goes wrong on the way."""

# ruff: noqa: ASYNC220, ASYNC221 - these tests start and look at processes and files; nothing
# else runs on their loop

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import copy_store
from tests.fakes.recorder import MemoryRecorder
from tests.integration.microvm_owner import parts
from tests.machine import PATIENCE_S, Templates, control_groups

from belljar.channel import ExecRequest, PtySize
from belljar.errors import CellError
from belljar.events import Kind
from belljar.host.model import Trial
from belljar.image.kernel import Kernel
from belljar.image.store import Image
from belljar.isolation.microvm.template import ensure_template, find_job, open_vm
from belljar.isolation.microvm.vmm import Vmm
from belljar.isolation.proofs import boots_under
from belljar.plan.model import MicrovmPlan

pytestmark = [pytest.mark.vm, pytest.mark.anyio]
Parts = tuple[MicrovmPlan, Image, Kernel]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def made_of(vm_home: Path) -> Parts:
    return parts(vm_home)


@pytest.fixture
def stocked_home(prepared_home: Path, tmp_path: Path, templates: Templates) -> Path:
    """A store of this test's own with the templates that others made."""
    home = copy_store(prepared_home, tmp_path / "store")
    templates.take(home)
    return home


def left_of(home: Path) -> list[str]:
    """Journal entries, half-made templates, scratch files: not what a cell may leave."""
    patterns = ("journal/*", "templates/.making-*", "tmp/*", "cells/*")
    return [str(path) for pattern in patterns for path in home.glob(pattern)]


def cgroups_of(cell_id: str) -> list[Path]:
    return list(control_groups(cell_id))


def opened(
    home: Path, made: Parts, recorder: MemoryRecorder | None = None
) -> AbstractAsyncContextManager[Vmm]:
    return open_vm(*made, home=home, recorder=recorder or MemoryRecorder(), planned={})


NAMES = (
    "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; head -c16 /dev/urandom | od -An"
    " -tx1; date +%s"
)


@pytest.mark.promise("2.2", "3.1")
async def test_a_clone_is_a_new_machine(vm_home: Path, made_of: Parts) -> None:
    """Two clones share nothing that names or seeds a machine, and leave nothing."""
    recorder, seen = MemoryRecorder(), []
    for _ in range(2):
        async with opened(vm_home, made_of, recorder) as vm:
            before_s = time.time()
            seen.append((await shell(vm, NAMES)).decode().split("\n"))
            assert vm.emulated
            assert before_s - 2 < int(seen[-1][4]) < time.time() + 2
            assert not vm.cause_of_death()
    assert all(one != other for one, other in zip(seen[0][:4], seen[1][:4], strict=True)), seen
    ends = [event.data for event in recorder.events if event.kind is Kind.CELL_DESTROYED]
    assert [data["clean"] for data in ends] == [True, True]
    assert left_of(vm_home) == []


async def shell(vm: Vmm, script: str, pty: PtySize | None = None) -> bytes:
    outcome = await vm.client.exec(ExecRequest(argv=("/bin/sh", "-c", script), pty=pty))
    assert (outcome.code, outcome.stderr) == (0, b""), outcome
    return outcome.stdout


async def _a_terminal(vm: Vmm) -> None:
    look = "tty; test -t 0 && test -t 1 && test -t 2; ls -l /proc/self/fd"
    said = await shell(vm, look, pty=PtySize(rows=24, cols=80))
    assert said.startswith(b"/dev/pts/"), said
    assert b"pipe:" not in said, said


async def _a_file_in(vm: Vmm) -> None:
    await vm.client.write_file("/tmp/a", b"kept" * 100_000)
    assert await shell(vm, "wc -c < /tmp/a") == b"400000\n"


@pytest.mark.promise("3.1")
@pytest.mark.parametrize("operation", [_a_terminal, _a_file_in])
async def test_whatever_comes_first(
    vm_home: Path, made_of: Parts, operation: Callable[[Vmm], Awaitable[None]]
) -> None:
    """A clone's first operation may be of any kind and size, and is as any later one."""
    async with opened(vm_home, made_of) as vm:
        await operation(vm)


@pytest.mark.promise("6.1")
async def test_planted_survivors_are_found_and_killed(vm_home: Path, made_of: Parts) -> None:
    """One with the cell's id, one in its group: an unclean destruction, which ends them."""
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
@pytest.mark.root
async def test_memory_is_bounded_by_the_host(vm_home: Path, made_of: Parts) -> None:
    """Beyond the jail's bound the host's kernel kills the VMM, and the cause says so."""
    plan, image, kernel = made_of
    small = replace(plan, jail=replace(plan.jail, memory_max_bytes=160 << 20))
    await ensure_template(find_job(plan, image, kernel, vm_home), MemoryRecorder())
    async with opened(vm_home, (small, image, kernel)) as vm:
        with pytest.raises(CellError):
            await vm.client.exec(ExecRequest(argv=HOG))
        why = "the VMM was killed by signal SIGKILL (out of memory in its control group)"
        assert vm.cause_of_death() == why
        assert (await vm.destroy()).clean


@pytest.mark.promise("3.1")
async def test_a_damaged_template_is_rebuilt_once(stocked_home: Path) -> None:
    """The cell comes up from a template made again, and that is on record."""
    made = parts(stocked_home)
    template = await ensure_template(find_job(*made, stocked_home), MemoryRecorder())
    own = template.memory.parent / "own"  # the file may be other stores' too
    subprocess.run(["cp", "--sparse=always", template.memory, own], check=True)
    template.memory.parent.chmod(0o755)
    own.chmod(0o644)
    own.replace(template.memory)
    with template.memory.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"changed")
    recorder = MemoryRecorder()
    async with opened(stocked_home, made, recorder) as vm:
        outcome = await vm.client.exec(ExecRequest(argv=("/bin/true",)))
        assert outcome.code == 0
    kinds = recorder.kinds()
    assert (kinds.count(Kind.TEMPLATE_REJECTED), kinds.count(Kind.TEMPLATE_BUILT)) == (1, 1)
    assert left_of(stocked_home) == []


@pytest.mark.promise("8.1")
async def test_a_machine_too_small_for_its_workload_is_refused(
    vm_home: Path, made_of: Parts
) -> None:
    """Where the kernel would need what the workload may have; nothing is left."""
    plan, image, kernel = made_of
    tight = replace(plan.vm, ram_mib=(plan.guest.memory_max_bytes >> 20) + 48)
    job = find_job(replace(plan, vm=tight), image, kernel, vm_home)
    with pytest.raises(CellError, match="no room for its kernel"):
        await ensure_template(job, MemoryRecorder())
    assert left_of(vm_home) == []


async def test_an_accelerator_is_proven_by_a_guest(vm_home: Path, made_of: Parts) -> None:
    """It boots, and leaves nothing."""
    emulated = await boots_under("tcg", made_of[2], home=vm_home, deadline_s=60)
    assert emulated == Trial.of("")
    assert left_of(vm_home) == []
