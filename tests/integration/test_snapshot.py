"""Snapshot and fork of microVM cells in use, and what goes wrong with them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell, Snapshot
from belljar.cell.open import open_cell, open_range
from belljar.cell.parts import start_run
from belljar.errors import CellError, PolicyError
from belljar.events import Kind
from belljar.isolation import renewal
from belljar.ledger.listing import read_events
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.verification import Status, verify

pytestmark = [pytest.mark.vm, pytest.mark.slow]
SMALL = {"memory": "256MiB", "disk": "64MiB", "processes": 64, "lifetime": "30m"}
POLICY: dict[str, Any] = {
    "belljar": 1,
    "risk": "low",
    "tier": "microvm",
    "user": "root",
    "snapshots": True,
    "resources": SMALL,
}
DECOYS = [{"kind": "dotenv", "id": "keys", "place": "/srv/keys.env"}]
IDENTITY = "cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname"
RANDOM = (
    "head -c 16 /dev/urandom | od -An -tx1; "
    'python3 -c "import os, secrets, ssl; print(os.getrandom(16).hex()); '
    'print(secrets.token_hex()); print(ssl.RAND_bytes(16).hex())"'
)
DRAWN = "; until [ -s /tmp/drawn ]; do sleep 0.1; done; cat /tmp/drawn"
LONGEST = "until [ -e /tmp/longest ]; do sleep 0.1; done; cat /tmp/longest"
# What runs while the machine is saved draws a random number as soon as the clock has jumped, and
# says how long a timer of 0.1 s took at most.
DRAWS = """\
import os, time
before, last, longest, has_drawn = time.time(), time.monotonic(), 0.0, False
while True:
    time.sleep(0.1)
    wall, now = time.time(), time.monotonic()
    if wall - before > 1800 and not has_drawn:
        has_drawn = True
        open('/tmp/drawn', 'w').write(os.urandom(16).hex())
    longest, before, last = max(longest, now - last), wall, now
    open('/tmp/longest.new', 'w').write(f'{longest}\\n')
    os.rename('/tmp/longest.new', '/tmp/longest')
"""


@asynccontextmanager
async def saved(
    home: Path, *prepare: str, policy: dict[str, Any] = POLICY
) -> AsyncIterator[tuple[RunDirectory, Cell, Snapshot]]:
    """A cell in which these scripts ran, and its snapshot."""
    with start_run("test", None, [], home=home) as run:
        async with open_cell(policy, run=run, home=home) as cell:
            for script in prepare:
                await said(cell, script)
            yield run, cell, await cell.snapshot("first")


async def opened(snapshot: Snapshot) -> None:
    async with snapshot.fork():
        pass


async def said(cell: Cell, script: str) -> list[str]:
    output = await cell.exec(["sh", "-c", script])
    assert output.returncode == 0, output.stderr
    return output.stdout.decode().splitlines()


def scratch_of(home: Path) -> list[Path]:
    """What is in the store for as long as somebody uses it."""
    return list((home / "tmp").iterdir()) if (home / "tmp").exists() else []


@pytest.mark.promise("3.6")
def test_a_fork_goes_on_from_the_moment(vm_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has files, processes and memory of the moment, ids and randomness of its own."""

    async def look() -> Path:
        prepare = (
            "echo then > /tmp/note; (sleep 98765 >/dev/null 2>&1) &",
            f"cat > /tmp/draws.py <<'EOF'\n{DRAWS}EOF\n",
            "python3 /tmp/draws.py >/dev/null 2>&1 & until [ -e /tmp/longest ]; do sleep 0.1; done",
        )
        async with saved(vm_home, *prepare) as (run, cell, snapshot):
            # An hour passes for a fork between the moment and its start.
            clock = SimpleNamespace(time_ns=lambda: time.time_ns() + 3600 * 10**9)
            monkeypatch.setattr(renewal, "time", clock)
            moment = time.monotonic()
            assert (snapshot.state, snapshot.name, snapshot.cell) == ("machine", "first", cell.id)
            await said(cell, "echo later > /tmp/note; touch /tmp/later")
            (expected,) = await said(cell, "cat /tmp/longest")
            seen = [await said(cell, IDENTITY)]
            async with snapshot.fork() as one, snapshot.fork() as other:
                forks = (one, other)
                for fork in forks:
                    note = await said(fork, "cat /tmp/note; ls /tmp/later 2>&1 | wc -l")
                    assert note == ["then", "1"]
                    assert await said(fork, "ps -e -o args= | grep -c [s]leep.98765") == ["1"]
                    seen.append(await said(fork, IDENTITY))
                drawn = [await said(fork, RANDOM + DRAWN) for fork in forks]
                passed_s = time.monotonic() - moment
                for machine in (cell, *forks):
                    (longest,) = await said(machine, "rm /tmp/longest; " + LONGEST)
                    assert float(longest) < max(passed_s, 2 * float(expected))
                (wall,) = await said(forks[0], "date +%s")
                assert abs(float(wall) - 3600 - time.time()) < PATIENCE_S
                await said(forks[0], "echo 2 > /tmp/note")
                await refused_while_busy(forks[0])
                second = await saved_meanwhile(forks[0], vm_home)
            async with second.fork() as again:
                assert await said(again, "cat /tmp/note") == ["2"]
            assert await said(cell, "cat /tmp/note") == ["later"]
            ids = {cell.id}
            for to, note in ((second, ["2"]), (snapshot, ["then"]), (None, [])):
                await cell.revert(to=to, verify=to is snapshot)
                assert await said(cell, "cat /tmp/note 2>/dev/null || true") == note
                ids.add(cell.id)
            assert len(ids) == 4
        for each in (*zip(*seen, strict=True), *zip(*drawn, strict=True)):
            assert len({*each}) == len(each), each
        assert len(drawn[0]) == 5
        return run.path

    path = anyio.run(look)
    lines = list(read_events(path))
    taken = [line for line in lines if line.kind is Kind.CELL_SNAPSHOT]
    forked = [line for line in lines if line.kind is Kind.CELL_FORKED]
    for snapshot, times in zip(taken, (3, 2), strict=True):  # a way back to it is one, too
        of_it = [line for line in forked if line.data["snapshot"] == snapshot.data["snapshot"]]
        assert {line.data["from"] for line in of_it} == {snapshot.cell}
        assert len({line.cell for line in of_it} | {snapshot.cell}) == times + 1
    deleted = [line.data for line in lines if line.kind is Kind.SNAPSHOT_DELETED]
    assert [data["clean"] for data in deleted] == [True] * 3  # and what a busy cell began
    assert {data["snapshot"] for data in deleted} > {line.data["snapshot"] for line in taken}
    assert all(line.data["clean"] for line in lines if line.kind is Kind.CELL_DESTROYED)
    assert verify(path).status is Status.VERIFIED
    assert scratch_of(vm_home) == []


async def saved_meanwhile(cell: Cell, home: Path) -> Snapshot:
    """A snapshot, with commands and pings that are called while it is written."""
    before, taken = len(list((home / "tmp").glob("*/memory"))), list[Snapshot]()

    async def save() -> None:
        taken.append(await cell.snapshot())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(save)
        while len(list((home / "tmp").glob("*/memory"))) == before:  # noqa: ASYNC110 - a file's
            await anyio.sleep(0.005)
        for _ in range(3):
            tasks.start_soon(said, cell, "echo fine")
            tasks.start_soon(cell.ping)
    return taken[0]


CHANGES = (
    "mkdir -p /a/b; echo kept > /a/b/c; ln -s /nowhere /a/l; ln /a/b/c /a/hard; mkfifo /a/p; "
    "echo x > /srv/x; chown 1000:1000 /srv/x; chmod 4751 /srv/x; touch -d 2001-01-01 /srv/x; "
    "echo t > /tmp/y; echo b >> /etc/passwd; rm -rf /etc/debian_version /usr/local/share; "
    "rmdir /mnt; echo file > /mnt; printf 'odd' > \"/a/$(printf 'new\\nline -rf')\""
)
FILES = (
    "cat /a/b/c /a/hard /mnt; readlink /a/l; stat -c '%F %a %u:%g %Y' /a/p /srv/x /a/hard; "
    "cat /tmp/y; tail -n 1 /etc/passwd; ls /etc/debian_version /usr/local/share 2>&1 | wc -l; "
    "ls /a | wc -l; find / -xdev | sort | sha256sum"
)


@pytest.mark.parametrize("tier", ["container", pytest.param("gvisor", marks=pytest.mark.thorough)])
def test_files_of_a_container(vm_home: Path, tier: str) -> None:
    """All that was made, changed and removed, and no more; changed files are refused."""
    policy = {**POLICY, "tier": tier, "resources": {**SMALL, "disk": "32MiB"}}

    async def look() -> None:
        with start_run("test", None, [], home=vm_home) as run:
            async with open_cell(policy, run=run, home=vm_home) as cell:
                await said(cell, CHANGES)
                expected, names = await said(cell, FILES), await said(cell, IDENTITY)
                snapshot = await cell.snapshot()
                assert snapshot.state == "files"
                await said(cell, "rm -rf /a; echo later > /srv/later")
                async with snapshot.fork() as fork:
                    assert await said(fork, FILES) == expected
                    assert not set(await said(fork, IDENTITY)) & set(names)
                    async with (await fork.snapshot()).fork() as again:
                        assert await said(again, FILES) == expected
                        drawn = [*await said(fork, RANDOM), *await said(again, RANDOM)]
                        assert len({*drawn}) == 8
                await cell.revert(to=snapshot, verify=True)
                assert await said(cell, FILES) == expected
                with (snapshot.directory / "files").open("r+b") as file:
                    file.write(b"/")
                with pytest.raises(CellError, match="changed"):
                    await opened(snapshot)
        assert scratch_of(vm_home) == []

    anyio.run(look)


@pytest.mark.promise("3.6")
def test_what_is_refused(vm_home: Path, tmp_path: Path) -> None:
    """Without the policy's word, with network, decoys or a secret, busy, or another's."""
    container = {**POLICY, "tier": "container"}
    (tmp_path / "key").write_text("the key\n")
    (with_secret := tmp_path / "p.yaml").write_text(
        "belljar: 1\nrisk: low\nuser: root\nsnapshots: true\n"
        "files: [{source: key, target: /root/key, secret: true}]\n"
    )
    refused: tuple[tuple[Any, str], ...] = (
        ({**container, "snapshots": False}, "snapshots"),
        ({**container, "decoys": DECOYS}, "decoys"),
        ({**container, "network": {"default": "simulate"}}, "network"),
        (with_secret, "secret"),
    )

    async def ask() -> None:
        for policy, why in refused:
            async with open_range(policy, home=vm_home) as range_:
                with pytest.raises(PolicyError, match=why):
                    await range_.cell.snapshot()
                assert await said(range_.cell, "echo fine") == ["fine"]
        async with saved(vm_home, policy=container) as (run, cell, first):
            for theirs, policy, why in (
                (None, container, "another run"),
                (run, {**container, "user": "nobody"}, "another policy"),
            ):
                async with open_cell(policy, run=theirs, home=vm_home) as other:
                    with pytest.raises(CellError, match=why):
                        await other.revert(to=first)
                    assert await said(other, "echo fine") == ["fine"]
            await refused_while_busy(cell)

    anyio.run(ask)
    assert scratch_of(vm_home) == []


async def refused_while_busy(cell: Cell) -> None:
    background = await cell.start(["sleep", "999"])
    with pytest.raises(CellError, match="busy"):
        await cell.snapshot()
    assert background.running
    await background.kill()
