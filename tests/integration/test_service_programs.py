"""A service's program in a cell of each tier, as in a container of Docker's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.fakes.compiled import compile_static
from tests.fakes.images import directory, docker_archive, entry, layer
from tests.fakes.recorder import MemoryRecorder
from tests.integration.processes import quick_command

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.cell.targets import serve
from belljar.errors import CellError
from belljar.events import Kind
from belljar.image.oci import import_image
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify
from belljar.plan.network import StandInPlan
from belljar.policy.load import load_policy
from belljar.probe.model import Verdict
from belljar.probe.run import END, probe_cell

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.anyio]
TIERS = ("container", "gvisor", "microvm")
POLICY = (
    "belljar: 1\nrisk: low\ntier: {tier}\nimage: {image}\nuser: '{user}'\nresources: {{cpus: 1,"
    " memory: 256MiB, disk: 64MiB, processes: 64, lifetime: 10m}}\n"
)

# As Docker's users write them; `bare` is built from nothing, and has no shell.
COMPOSE = """
services:
  default:
    image: default
    user: "1000"
    tmpfs: [/scratch, "/run/app:mode=700,uid=1000"]
    depends_on:
      web: {condition: service_healthy}
      bare: {condition: service_healthy}
      first: {condition: service_started}
  web:
    image: default
    restart: on-failure
    user: root
    command: "sh -c 'test -e /tmp/2 || { touch /tmp/2; exit 1; }; exec python3 -m http.server 80'"
    healthcheck: {test: "curl -fs http://localhost", interval: 1s, retries: 60}
  first:
    image: default
    command: ["sh", "-c", "test $$$$ = 1 || { echo must be pid 1 >&2; exit 100; }; sleep 1d"]
  bare:
    image: bare:1
    build: bare
    healthcheck: {test: [CMD, /serve, ask], interval: 1s, retries: 60}
"""
DOCKERFILE = 'FROM scratch\nCOPY serve /\nENTRYPOINT ["/serve"]\n'
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

WRITES = "touch /scratch/a /run/app/b && stat -c %a:%u /scratch /run/app | xargs"
COMMANDS = {
    "default": ["sh", "-c", WRITES + "; curl -s -o /dev/null -w %{http_code} http://web/"],
    "first": ["readlink", "/proc/1/exe"],
    "bare": ["/serve", "ask"],
}

@solver
def look():
    async def solve(state, generate):
        done = [await sandbox(name).exec(argv) for name, argv in COMMANDS.items()]
        state.output.completion = "|".join(each.stdout.strip() for each in done)
        return state
    return solve

@task
def services():
    target = "1777:0 700:1000\\n200|/usr/bin/dash|pid 1"
    return Task(dataset=[Sample(input="x", target=target)], solver=look(), scorer=match("exact"), sandbox="docker")
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def opened(
    folder: Path, tier: str, *, user: str = "0", image: str = "default"
) -> AsyncIterator[Cell]:
    """A cell, of which nothing is left and whose record is whole."""
    path = folder / "policy.yaml"
    path.write_text(POLICY.format(tier=tier, image=image, user=user))
    with start_run("test", "programs", []) as run:
        async with open_cell(load_policy(path), run=run) as cell:
            yield cell
        assert cell.destruction is not None
        assert cell.destruction.clean
    assert verify(run.path).ok(strict=True)
    starts = [e for e in read_events(run.path) if e.kind is Kind.EXEC_STARTED]
    (folder / "starts").write_text("\n".join(" ".join(e.data["argv"]) for e in starts))


async def ready(cell: Cell, **settings: object) -> None:
    await serve(cell, StandInPlan(id="svc", kind="cell", names=(), ports=(), settings=settings))


async def said(cell: Cell, script: str) -> str:
    output = await cell.exec(["sh", "-c", script], timeout_s=300)
    return (output.stdout_text + output.stderr_text).strip()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.thorough_in("microvm")
async def test_a_cell_and_its_programs(tier: str, home: Path, tmp_path: Path) -> None:
    """One after another in one cell, of which the probes find at the end that it is contained."""
    async with opened(tmp_path, tier) as cell:
        await is_outlived(cell)
        await is_process_1(cell)
        if tier != "microvm":  # whose agent is the same, and emulated on many machines
            await ends_with_its_leader(cell)
            await is_started_again(cell)
        report = await probe_cell(cell, recorder=MemoryRecorder(), phase=END)
        assert report.verdict is Verdict.CONTAINED, report
    if tier != "microvm":
        assert (tmp_path / "starts").read_text().count("exec python3 -m http.server") == 3


async def is_outlived(cell: Cell) -> None:
    """When process 1 ends, all beside it end; commands run on without, and another may begin."""
    await ready(cell, command=["sh", "-c", "until test -e /tmp/over; do sleep 0.1; done; exit 3"])
    assert not (await cell.exec(["sh", "-c", "touch /tmp/over; sleep 600"], timeout_s=300)).success
    for _ in range(20):  # one that begins while the namespace is dying ends with it
        if found := await said(cell, "test $$ != 1 && cat /proc/self/comm"):
            break
    assert found == "cat"


async def is_process_1(cell: Cell) -> None:
    """Commands beside it see it as that, in a /proc that is covered as the cell's own is."""
    covered = "for f in kcore keys sys/kernel/random/boot_id cmdline; do cat /proc/$f; done"
    before = await said(cell, covered)
    frozen = await said(cell, "echo x > /proc/sys/kernel/hostname")
    program = await cell.start(["sleep", "1d"], service=True)
    with anyio.fail_after(300):
        await program.leave()
    assert (await program.wait()).runs_on
    assert await said(cell, "cat /proc/1/comm; kill -0 1 && readlink /proc/self/exe") == (
        "sleep\n/usr/bin/readlink"
    )
    assert await said(cell, "readlink /proc/self/ns/pid /proc/1/ns/pid | uniq | wc -l") == "1"
    assert await said(cell, covered) == before
    assert (frozen == "") is (await said(cell, "echo x > /proc/sys/kernel/hostname") == "")
    late = "(setsid sh -c 'setsid sleep 7777 & exec setsid sleep 7778' &); sleep 1000"
    assert (await cell.exec(["sh", "-c", late], timeout_s=2)).timed_out
    assert "sleep 777" not in await said(cell, "ps axww | grep -v grep")
    for forbidden in ("unshare -p true", "unshare -m true", "nsenter -t 1 -p true"):
        assert "not permitted" in await said(cell, forbidden)


async def ends_with_its_leader(cell: Cell) -> None:
    """Where a command kills its own leader, all that it started ends, and the program with it."""
    leader = "ps -eo pid,comm | awk '$2 == \"init\" && $1 != 1 {print $1}'"
    script = (
        f"(setsid sleep 7777 &); until pidof sleep; do :; done; kill -9 $({leader}); sleep 5555"
    )
    for has_program in (True, False):  # the second one in a namespace without
        output = await cell.exec(["sh", "-c", script], timeout_s=120)
        assert (output.returncode, output.program_ended) == (137, has_program)
        assert await said(cell, "ps axww | grep 'sleep [1-9]'  | grep -v grep") == ""


async def is_started_again(cell: Cell) -> None:
    """Until its check passes, and each start is on record."""
    serving = "exec python3 -m http.server 80"
    script = f"test -e /tmp/2 || {{ touch /tmp/2; echo no database; exit 1; }}; {serving}"
    asks = "import urllib.request as u; u.urlopen('http://localhost')"
    health = {"command": ["python3", "-c", asks], "interval": 0.5, "timeout": 30.0, "retries": 60}
    command = ["sh", "-c", script]
    with pytest.raises(CellError, match="status 1; its output ends with: no database"):
        await ready(cell, command=command, health=health)
    await said(cell, "rm /tmp/2")
    await ready(cell, command=command, health=health, restart="on-failure")


@pytest.mark.thorough
async def test_a_race_for_the_name_of_a_cover_shows_nothing(home: Path, tmp_path: Path) -> None:
    """Root of a cell that exchanges the agent's file while a program is started again."""
    racer = compile_static(Path(__file__).with_name("racer.c"), tmp_path / "racer").read_bytes()
    race = "setsid /tmp/racer /proc/self/fd/22/interrupts >/dev/null 2>&1 </dev/null &"
    covered = "cat /proc/stat /proc/cmdline /proc/sys/kernel/random/boot_id"
    check = (
        f'[ "$(cat /proc/1/comm)" != init ] || [ -e /tmp/r ] || {{ {race} touch /tmp/r; }}; exit 1'
    )
    health = {"command": ["sh", "-c", check], "interval": 0.2, "timeout": 5.0, "retries": 12}
    command = ["sh", "-c", "test -e /tmp/r || exit 1; sleep 0.5; exit 1"]
    async with opened(tmp_path, "container") as cell:
        await cell.write_file("/tmp/racer", racer, mode=0o755)
        before = await said(cell, covered)
        for _ in range(12):  # the racer may come too late for one
            with pytest.raises(CellError):
                await ready(cell, command=command, health=health, restart="on-failure")
            assert await said(cell, covered) == before
            if "exchanged" in await said(cell, "rm -f /tmp/r; cat /tmp/hits || true"):
                return
    pytest.fail("the racer exchanged nothing")


def bare_image(home: Path, folder: Path, *, user: str = "root", owner: int = 0) -> str:
    """An image of one program and one directory of a user's; in the session's store."""
    served = compile_static(Path(__file__).with_name("bare_service.c"), folder / "serve")
    files = layer(
        directory("data", uid=owner, mode=0o700),
        entry("data/kept", b"kept", uid=owner, mode=0o700),
        entry("serve", served.read_bytes(), mode=0o755),
    )
    archive = docker_archive(folder / "bare.tar", [files], {"Entrypoint": ["/serve"], "User": user})
    import_image(home, f"docker-archive:{archive}", name=f"bare-of-{owner}")
    return f"bare-of-{owner}"


@pytest.mark.root
@pytest.mark.parametrize(("tier", "owner"), [("gvisor", 0), ("microvm", 1_000_660_000)])
async def test_an_image_without_a_shell(tier: str, owner: int, home: Path, tmp_path: Path) -> None:
    """Its program runs and its check is asked; nothing of the cell needs more than it has."""
    image = bare_image(home, tmp_path, user=str(owner or "root"), owner=owner)
    async with opened(tmp_path, tier, user=str(owner), image=image) as cell:
        if owner:
            assert (await cell.exec(["/serve", "id"])).stdout == b"%d\n" % owner
            assert await cell.read_file("/data/kept", max_bytes=9) == b"kept"
            await cell.write_file("/data/more", "more", mode=0o600)
            assert (await cell.stat("/data/more")).size_bytes == 4
        health = {"command": ["/serve", "ask"], "interval": 0.2, "timeout": 60.0, "retries": 50}
        await ready(cell, health=health, directories=["/data/deep", "/scratch:mode=1777"])
        assert (await cell.exec(["/serve", "ask"])).stdout == b"pid 1\n"
        report = await probe_cell(cell, recorder=MemoryRecorder(), phase=END)
        assert report.verdict is Verdict.CONTAINED, report


def test_a_compose_task_with_such_programs(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it by a task's own compose file."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/Dockerfile").write_text(DOCKERFILE)
    program = compile_static(Path(__file__).with_name("bare_service.c"), tmp_path / "bare/serve")
    program.chmod(0o755)
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    (tmp_path / "tasks.py").write_text(TASK)
    (tmp_path / "low.yaml").write_text(POLICY.format(tier="container", image="default", user="0"))
    monkeypatch.setenv("BELLJAR_POLICY", str(tmp_path / "low.yaml"))
    argv = quick_command("run", "--json", "--model", "mockllm/model", "tasks.py")
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    (sample,) = said["samples"]
    run = Path(said["run_dir"])
    assert sample["scores"] == {"match": "C"}
    assert sample["verdict"] == "contained"
    starts = [line.data["argv"] for line in read_events(run) if line.kind is Kind.EXEC_STARTED]
    assert sum("http.server" in " ".join(argv) for argv in starts) == 2
    assert verify(run).ok(strict=True)
