"""Touch sensors on the real mechanism of each tier: what they see, and what is no touch."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.decoys import watch_files
from belljar.cell.open import open_range
from belljar.dataclass import dataclass
from belljar.events import Event, Trust
from belljar.isolation.touches import Access
from belljar.probe.model import Verdict
from belljar.probe.run import probe_cell

pytestmark = pytest.mark.anyio
DECOY = "/root/.aws/credentials"


@pytest.fixture(scope="module")
def policy(tier: str) -> Mapping[str, object]:
    """One that has decoys: gVisor has to be asked for its trace when it starts."""
    decoy = {"id": "other", "kind": "text", "place": "/root/other", "template": "{secret}"}
    resources = {"memory": "512MiB", "disk": "256MiB", "processes": 512, "lifetime": "30m"}
    words = {"belljar": 1, "risk": "low", "tier": tier, "user": "root", "decoys": [decoy]}
    return {**words, "resources": resources}


@pytest.fixture(scope="module")
async def cell(
    anyio_backend: str, vm_home: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Cell]:
    async with open_range(request.getfixturevalue("policy"), home=vm_home, ahead=True) as opened:
        yield opened.cell  # nobody took it: it has no decoys, and no sensor, but the test's own


def descriptors() -> set[str]:
    return {file.name for file in Path("/proc/self/fd").iterdir()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch(Access):
    decoy: str
    trust: Trust


class Touches(list[Touch]):
    def record(self, event: Event) -> None:
        self.append(Touch(**event.data, trust=event.trust))  # type: ignore[arg-type]

    async def wait(self, cell: Cell, wanted: Callable[[Touch], bool]) -> Touch:
        """The first that fits. What a guest agent reports is read with the next operation."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                for touch in self:
                    if wanted(touch):
                        return touch
                await cell.ping()
                await anyio.sleep(0.02)

    @property
    def operations(self) -> set[str]:
        return {touch.operation for touch in self}


@asynccontextmanager
async def watched(cell: Cell) -> AsyncIterator[Touches]:
    """The decoy, placed and watched; all touches are there when the block is left."""
    await cell.write_file(DECOY, "[default]\naws_access_key_id = AKIA\n", user="0")
    touches = Touches()
    async with watch_files(cell, {DECOY: "aws"}, record=touches.record) as problems:
        assert not problems
        yield touches


async def run(cell: Cell, script: str) -> None:
    output = await cell.exec(["sh", "-c", script], user="0", cwd="/")
    assert output.returncode == 0, output


@pytest.mark.promise("5.6")
async def test_a_read_is_an_open_and_a_read(cell: Cell) -> None:
    """`cat` is both; each names decoy and path, and says whose word it is."""
    async with watched(cell) as touches:
        await run(cell, f"cat {DECOY}")
    assert touches.operations == {"open", "read"}
    assert {(touch.decoy, touch.path) for touch in touches} == {("aws", DECOY)}
    trust = "guest-reported" if cell.tier == "microvm" else "host-observed"
    assert {touch.trust.value for touch in touches} == {trust}


@pytest.mark.promise("5.6")
async def test_the_process_is_named_while_it_lives(cell: Cell) -> None:
    """A process that is still there has its name and its number in the cell on record."""
    is_known = cell.tier != "container"
    async with watched(cell) as touches, cell.open_exec(["tail", "-f", DECOY], user="0"):
        name = "tail" if is_known and cell.tier != "gvisor" else ""
        touch = await touches.wait(cell, lambda touch: touch.process == name)
        assert (touch.pid is not None and touch.pid > 1) == is_known


@pytest.mark.promise("5.6")
async def test_looking_at_names_is_no_touch(cell: Cell) -> None:
    """Neither are the attributes, or a new name."""
    for script in (
        f"stat {DECOY}; ls -l {DECOY}; ls -la /root/.aws; test -e {DECOY}; test -r {DECOY}",
        "find /root -name credentials; find /root -ls; du -a /root",
        f"chmod 600 {DECOY}; touch -a {DECOY}.other",
        f"mv {DECOY} {DECOY}.moved; mv {DECOY}.moved {DECOY}",
    ):
        async with watched(cell) as touches:
            await run(cell, f"{{ {script}; }} > /dev/null")
        assert touches == [], script


@pytest.mark.promise("5.6")
async def test_a_read_of_belljars_own_is_no_touch(cell: Cell, tmp_path: Path) -> None:
    """A file operation of the host's is not the workload's touch, a command that reads it is."""
    own = "/root/own"
    await cell.write_file(own, "x", user="0")
    touches = Touches()
    async with watch_files(cell, {own: "own"}, record=touches.record):
        await cell.read_file(own, max_bytes=1000, user="0")
        await cell.download("/root", tmp_path / "root", user="0")
        assert touches == []
        await anyio.sleep(0.3)
        await run(cell, f"cat {own}")
    assert touches.operations == {"open", "read"}


_WAYS_ROUND = f"""
import mmap, os
decoy = {DECOY!r}
def mapped(path):
    return mmap.mmap(os.open(path, 0), 0, prot=mmap.PROT_READ)[:]
def removed():
    held = os.open(decoy, os.O_PATH)
    os.unlink(decoy)
    return os.read(os.open(f"/proc/self/fd/{{held}}", 0), 100)
def second_root():
    os.chroot(os.path.dirname(decoy))
    return open("/credentials", "rb").read()
"""


async def test_a_way_round_its_path_is_a_touch(cell: Cell) -> None:
    """Mapped, by `/proc`, or removed; gVisor's trace has the text of an open alone."""
    for expression, by_path in (
        ("mapped(decoy)", True),
        ("mapped('/proc/self/root' + decoy)", True),
        ("removed()", True),
        ("second_root()", True),
        ("os.link(decoy, '/root/name') or mapped('/root/name')", False),
        ("mapped(f'/proc/self/fd/{os.open(decoy, os.O_PATH)}')", False),
    ):
        async with watched(cell) as touches:
            script = f"{_WAYS_ROUND}\nassert b'AKIA' in ({expression})"
            output = await cell.exec(["python3", "-c", script], user="0", cwd="/")
        await run(cell, "rm -f /root/name")
        assert output.returncode == 0, output
        assert bool(touches) == (by_path or cell.tier != "gvisor"), expression


@pytest.mark.promise("5.6")
async def test_who_had_it_open_before_is_seen(cell: Cell) -> None:
    """A read through a descriptor that was opened before the watch began is a touch."""
    await cell.write_file(DECOY, "x", user="0")
    touches = Touches()
    script = f"exec 3<{DECOY}; echo ready; read -r line; cat <&3; read -r line"
    async with cell.open_exec(["sh", "-c", script], user="0") as command:
        async for chunk in command:
            if b"ready" in chunk[1]:
                break
        async with watch_files(cell, {DECOY: "aws"}, record=touches.record):
            await command.send_stdin(b"go\n")
            await touches.wait(cell, lambda touch: touch.operation == "read")
    assert touches.operations == {"read"}


@pytest.mark.promise("5.6")
@pytest.mark.thorough_in("gvisor", "microvm")
async def test_a_flood_hurts_neither_side(cell: Cell) -> None:
    """It ends in time and in a few reports, each process of it is counted, the cell works on."""
    # The kernel merges equal waiting events, but never those of two processes (fanotify), nor an
    # open with the read after it (inotify)
    opens, processes = (100_000 if cell.tier == "container" else 5_000), 200
    script = f"""
import os
for _ in range({processes}):
    if (child := os.fork()) == 0:
        for _ in range({opens // processes}):
            os.close(os.open({DECOY!r}, 0))
        os.read(os.open({DECOY!r}, 0), 1)
        os._exit(0)
    os.waitpid(child, 0)
"""
    async with watched(cell) as touches:
        output = await cell.exec(["python3", "-c", script], user="0")
        assert output.returncode == 0, output
        await cell.ping()
    assert touches.operations == {"open", "read"}
    assert len(touches) < 500
    for operation in ("open", "read"):
        counts = [touch.count for touch in touches if touch.operation == operation]
        assert sum(counts) >= processes, (operation, counts)


@pytest.mark.promise("5.6")
async def test_a_sensor_changes_nothing_inside(cell: Cell) -> None:
    """Every probe finds the cell contained while its sensor runs: nothing of it shows inside."""
    async with watched(cell) as touches:
        report = await probe_cell(cell, which="all", recorder=MemoryRecorder())
    assert report.verdict is Verdict.CONTAINED, report
    assert touches == []


@pytest.mark.promise("5.6")
async def test_a_cell_that_ends_before_its_sensor_leaves_nothing(
    policy: Mapping[str, object], vm_home: Path
) -> None:
    """Destruction is proven as ever; no thread and no descriptor of the sensor's stays."""
    before, threads = descriptors(), threading.enumerate()
    async with open_range(policy, home=vm_home, ahead=True) as opened, watched(opened.cell):
        destruction = await opened.cell.destroy()
    assert destruction.clean
    assert descriptors() <= before
    left = [thread.name for thread in threading.enumerate() if thread not in threads]
    assert "touch-sensor" not in left
