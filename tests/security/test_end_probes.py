"""What still runs at a sample's end, and would like to say what the probes say there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.machine import PATIENCE_S
from tests.security.conftest import policy_of

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.channel import ExecRequest
from belljar.events import Kind
from belljar.probe.model import AttemptOutcome, ProbeReport, Verdict
from belljar.probe.run import probe_cell

pytestmark = [pytest.mark.anyio, pytest.mark.root]
POLICY = """\
belljar: 1
risk: low
tier: {tier}
resources: {{cpus: 1, {resources}, exec_timeout: 120s}}
"""
# In gVisor each process is memory of the cell's; a machine as others are, for its template.
RESOURCES = dict.fromkeys(("container", "gvisor"), "memory: 512MiB, disk: 64MiB, processes: 100")
RESOURCES["microvm"] = "memory: 256MiB, disk: 64MiB, processes: 64"
# Sees the program of the probes, tells that it did, and does what it can to it: its output is
# rewritten, it is stopped, traced, killed.
FORGER = r"""
import ctypes, os, signal, time
libc, me, done = ctypes.CDLL(None), os.getpid(), set()
for number in (1, 2, 3, 13, 15):
    signal.signal(number, signal.SIG_IGN)
def forge(p):
    fd, w = os.open(f'/proc/{p}/fd/1', os.O_RDONLY | os.O_NONBLOCK), os.open(f'/proc/{p}/fd/1', os.O_WRONLY | os.O_NONBLOCK)
    os.write(w, os.read(fd, 65536).replace(b'absent', b'denied') + b'files.read_host\tdenied\tEACCES\n')
open('/tmp/ready', 'a').write('r')
while True:
    for p in os.listdir('/proc'):
        try:
            if not p.isdigit() or p in done or open(f'/proc/{p}/cmdline').read()[:8] != 'sh\0quick':
                continue
            done.add(p)
            open('/tmp/seen', 'a').write('s')
            forge(p)
        except OSError:
            pass
        if p in done:
            libc.ptrace(16, int(p), 0, 0)
            libc.kill(int(p), signal.SIGKILL)
"""
BOMB = r"""
import os, time
while True:
    try:
        os.fork()
    except OSError:
        open('/tmp/ready', 'a').close()
        time.sleep(0.001)
"""
# At once where the file system can, which spares an emulated machine seconds; then what is left.
FILL = (
    "fallocate -l $(df -k --output=avail /tmp | tail -n 1)K /tmp/full;"
    " dd if=/dev/zero of=/tmp/more bs=1M; dd if=/dev/zero of=/tmp/rest bs=1k"
)
OTHERS = 'for d in /proc/[0-9]*; do tr "\\0" " " <$d/cmdline; echo; done | grep -c "^python3"'


@pytest.fixture(
    scope="module", params=["container", "gvisor", pytest.param("microvm", marks=pytest.mark.vm)]
)
async def cell(
    request: pytest.FixtureRequest, anyio_backend: str, vm_home: Path
) -> AsyncIterator[Cell]:
    """One of each tier for the module: the end of a sample leaves it usable."""
    policy = policy_of(POLICY.format(tier=request.param, resources=RESOURCES[request.param]))
    async with open_cell(policy, home=vm_home) as opened:
        yield opened


async def probed(cell: Cell) -> tuple[ProbeReport, bytes]:
    """The probes of a sample's end, and what their program printed."""
    recorder = MemoryRecorder()
    report = await probe_cell(cell, recorder=recorder, phase="end")
    (event,) = [each for each in recorder.events if each.kind is Kind.PROBE_COMPLETED]
    return report, event.bodies[1].content


@pytest.fixture(scope="module")
async def undisturbed(cell: Cell) -> tuple[ProbeReport, bytes]:
    """As `probed`, in the cell in which nothing else has run yet."""
    return await probed(cell)


async def leave_running(cell: Cell, program: str, user: str | None = None) -> None:
    await cell.exec(["rm", "-f", "/tmp/ready", "/tmp/seen"], user="root")
    start = (
        'umask 0; setsid python3 -ISc "$0" >/dev/null 2>&1 </dev/null & until [ -e /tmp/ready ]; do'
        " :; done"
    )
    argv = ["sh", "-c", start, program]
    assert (await cell.exec(argv, user=user, timeout_s=PATIENCE_S)).returncode == 0


async def count_others(cell: Cell) -> int:
    return int((await cell.exec(["sh", "-c", OTHERS], user="root")).stdout)


async def was_seen(cell: Cell) -> bool:
    """Whether one of them saw the program of the probes."""
    return (await cell.exec(["test", "-e", "/tmp/seen"], user="root")).returncode == 0


async def held_until_seen(cell: Cell) -> AsyncIterator[bytes]:
    """An input that doesn't end before a daemon has seen who waits for it."""
    with anyio.fail_after(PATIENCE_S):
        while not await was_seen(cell):
            pass
    yield b"nonce=n\n"


def said(report: ProbeReport) -> dict[str, tuple[AttemptOutcome | None, Verdict]]:
    """What each probe said, and what it was taken for."""
    return {finding.name: (finding.outcome, finding.verdict) for finding in report.findings}


@pytest.mark.promise("7.3")
async def test_who_still_runs_has_no_say_in_the_end_probes(
    cell: Cell, undisturbed: tuple[ProbeReport, bytes]
) -> None:
    """A daemon that waits to rewrite what the probes say never sees them."""
    before, printed = undisturbed
    await leave_running(cell, FORGER, "root")
    held = ExecRequest(
        argv=["sh", "quick"], user="1000", probe=True, stdin=True, timeout_s=PATIENCE_S
    )
    await cell._live.client.exec(held, input=held_until_seen(cell))
    await cell.exec(["rm", "/tmp/seen"], user="root")
    assert await count_others(cell) == 1
    report, output = await probed(cell)
    assert (report.verdict, report.problem) == (Verdict.CONTAINED, "")
    assert said(report) == said(before)
    assert not await was_seen(cell)
    assert await count_others(cell) == 0
    assert output.count(b"\tabsent\t") == printed.count(b"\tabsent\t")


@pytest.mark.promise("7.3")
@pytest.mark.thorough_in("gvisor", "microvm")
async def test_a_fork_bomb_in_a_full_cell_makes_no_wrong_verdict(cell: Cell) -> None:
    """The bomb is ended, the probes run, and none says that it reached something."""
    await cell.exec(["sh", "-c", FILL], user="root", timeout_s=PATIENCE_S)
    await leave_running(cell, BOMB)
    # The agent gives up in bounded time, as on a machine that stalls; that is no wrong verdict.
    for _ in range(3):
        report, _ = await probed(cell)
        assert report.of(Verdict.BREACHED) == (), report.problem
        if report.verdict is not Verdict.VOID:
            break
    assert report.verdict is Verdict.CONTAINED, report.problem
    assert await count_others(cell) == 0
    await cell.exec(["sh", "-c", "rm -f /tmp/full /tmp/more /tmp/rest"], user="root")


@pytest.mark.promise("7.3")
@pytest.mark.thorough_in("gvisor", "microvm")
async def test_files_with_the_names_of_devices_are_no_breach(cell: Cell) -> None:
    """Root of a cell whose `/dev` can be written may log to a console that is not there."""
    script = (
        "cd /dev; for f in console mem kmsg hvc0; do echo x > $f; done; mkfifo tty0; mkdir nvram;"
        " true"
    )
    await cell.exec(["sh", "-c", script], user="root")
    report, _ = await probed(cell)
    await cell.exec(["sh", "-c", "cd /dev; rm -rf console mem kmsg hvc0 tty0 nvram"], user="root")
    assert (report.verdict, report.problem) == (Verdict.CONTAINED, "")
