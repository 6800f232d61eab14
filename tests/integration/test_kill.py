"""The kill switch on real cells of every tier, from another process than their owner's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.integration.as_user import UsersBelljar, started
from tests.integration.conftest import Belljar
from tests.integration.processes import wait_for
from tests.integration.remains import PROC
from tests.machine import PATIENCE_S

from belljar import CellError, HostError, kill, open_cell, open_pool, open_range, release
from belljar.isolation.hold import hold
from belljar.store.journal import Journal, JournalEntry

POLICY = "belljar: 1\nrisk: low\ntier: {tier}\n"
NETWORK = """network:
  stand_ins:
    page: {kind: http, names: [page.example], routes: [{path: /, body: x}]}
"""
# What an owner does is no matter of the tier, and each tier's parts are killed once.
OWNERS = [
    *(("container", owner_is) for owner_is in ("well", "dead", "stopped")),
    ("gvisor", "well"),
    ("microvm", "dead"),
]


def policy_of(folder: Path, tier: str, more: str = "") -> Path:
    file = folder / f"{tier}.yaml"
    file.write_text(POLICY.format(tier=tier) + more)
    return file


def processes_of(entries: list[JournalEntry]) -> list[str]:
    names = [entry.cell_id.encode() for entry in entries]
    found = []
    for directory in PROC.iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            with suppress(OSError):
                words = (directory / "cmdline").read_bytes()
                found += [f"{directory.name} {words[:80]!r}" for name in names if name in words]
    return found


@contextmanager
def an_owner(
    belljar: Belljar, policy: Path
) -> Iterator[tuple[subprocess.Popen[bytes], list[JournalEntry]]]:
    """A process whose cell runs a command that goes on, and its journal entries."""
    before = set(belljar.runs())
    process = belljar.start("exec", str(policy), "--", "sleep", "600")

    def runs() -> bool:
        new = [run for run in belljar.runs() if run not in before]
        if not new or not (new[-1] / "ledger.jsonl").exists():
            return False
        events = belljar.events(new[-1])
        return any(event["data"].get("argv") == ["sleep", "600"] for event in events)

    wait_for(runs, "the command's start", within_s=PATIENCE_S)
    try:
        yield process, list(Journal(belljar.home).entries())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        process.communicate()


def killed(belljar: Belljar, *words: str, code: int = 0) -> dict[str, Any]:
    done = belljar("kill", *words, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.promise("6.3")
@pytest.mark.parametrize(("tier", "owner_is"), OWNERS)
def test_a_cell_is_killed_whatever_its_owner_does(
    belljar: Belljar, tmp_path: Path, tier: str, owner_is: str
) -> None:
    """All of it is gone; an owner that lives is told, one that hangs or is dead saves nothing."""
    with an_owner(belljar, policy_of(tmp_path, tier)) as (process, entries):
        if owner_is != "well":
            process.send_signal(signal.SIGSTOP if owner_is == "stopped" else signal.SIGKILL)
        (cell,) = entries
        said = killed(belljar, cell.cell_id, "--reason", "enough of it")
        assert [one["ok"] for one in said["cells"]] == [said["ok"]] == [True]
        assert belljar.leftovers() == []
        assert [path for path in (*cell.cgroups, *cell.directories) if path.exists()] == []
        wait_for(lambda: processes_of(entries) == [], "the end of its processes")
        if owner_is != "dead":
            process.send_signal(signal.SIGCONT)
            _, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == CellError.exit_code
            assert b"killed by the operator: enough of it" in err
            events = [event["kind"] for event in belljar.events(belljar.runs()[-1])]
            order = [events.index(f"kill.{word}") for word in ("triggered", "completed")]
            assert order[0] < events.index("cell.destroyed") < order[1]
            assert belljar("ledger", "verify", "last").returncode == 0
    assert list((belljar.home / "journal").glob("*.kill")) == [] or owner_is == "dead"


@pytest.mark.promise("6.3")
def test_a_range_ends_whole(belljar: Belljar, tmp_path: Path) -> None:
    """Named by its cell, with an owner that hangs: gateway, supervisor and cell are gone."""
    with an_owner(belljar, policy_of(tmp_path, "container", NETWORK)) as (process, entries):
        process.send_signal(signal.SIGSTOP)
        (cell,) = (entry for entry in entries if entry.kind == "cell")
        said = killed(belljar, cell.cell_id)
        assert {one["kind"] for one in said["cells"]} == {"range", "cell"}
        assert belljar.leftovers() == []
        wait_for(lambda: processes_of(entries) == [], "the end of its processes")
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert b"killed by the operator" in err


@pytest.mark.promise("6.4")
@pytest.mark.anyio
@pytest.mark.thorough_in("trio")
async def test_a_held_store_makes_no_cell(vm_home: Path) -> None:
    """Neither cell nor range nor pool; after the release they are made."""
    await kill(everything=True, hold=True, reason="incident 7", home=vm_home)
    try:
        for opening in (open_cell, open_range, open_pool):
            with pytest.raises(HostError, match="incident 7"):
                async with opening("low", home=vm_home):
                    raise AssertionError("it was opened")
    finally:
        release(vm_home)
    async with open_cell("low", home=vm_home) as cell:
        assert (await cell.exec(["true"])).code == 0


@pytest.mark.promise("6.4")
@pytest.mark.anyio
@pytest.mark.thorough_in("trio")
@pytest.mark.parametrize("step", ["write", "update"])
async def test_a_cell_that_is_made_meanwhile_is_refused(
    vm_home: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The hold comes when it is in the journal, or runs: no command is ever started."""
    async with open_cell("low", home=vm_home):
        pass  # what cells share is made
    real = getattr(Journal, step)

    def then_hold(journal: Journal, *args: object, **fields: object) -> object:
        result = real(journal, *args, **fields)
        hold(vm_home, "now")
        return result

    monkeypatch.setattr(Journal, step, then_hold)
    try:
        with pytest.raises(HostError, match="now"):
            async with open_cell("low", home=vm_home):
                raise AssertionError("it was opened")
    finally:
        release(vm_home)
    assert Journal(vm_home).entries() == ()


@pytest.mark.anyio
@pytest.mark.thorough_in("trio")
@pytest.mark.usefixtures("short_grace")
async def test_whoever_waits_on_it_is_told(vm_home: Path) -> None:
    """A command that runs raises, so does the next; an idle cell of a pool is killed too."""
    async with (
        open_pool("low", size=1, home=vm_home) as pool,
        open_cell("low", home=vm_home) as cell,
    ):
        await pool.filled()

        async def soon() -> None:
            report = await kill(everything=True, reason="stop", home=vm_home)
            assert report.ok
            assert len(report.cells) == 2

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(soon)
            with pytest.raises(CellError, match="killed by the operator: stop"):
                await cell.exec(["sleep", "600"])
        with pytest.raises(CellError, match="killed by the operator: stop"):
            await cell.exec(["true"])


@pytest.mark.promise("6.3")
def test_an_ordinary_users_cell(grouped: UsersBelljar) -> None:
    """From another login of the user, without any right, with an owner that hangs."""
    user = grouped
    process = started(user, "low", "--tier", "container")
    process.send_signal(signal.SIGSTOP)
    done = user("kill", "--all", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert user.leftovers() == []
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert b"killed by the operator" in err
