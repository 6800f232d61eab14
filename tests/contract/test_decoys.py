"""Decoys on each tier: placed before the caller has the cell, read as what they are, on record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.decoys import KEY_FILE, file_time, read_key
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.cell.pool import open_pool
from belljar.errors import PolicyError
from belljar.policy.guarding import DecoyKind
from belljar.policy.model import DecoySpec
from belljar.signals.decoys import FILES, digest, mint

pytestmark = pytest.mark.anyio
RESOURCES = {"memory": "512MiB", "disk": "256MiB", "processes": 512, "lifetime": "30m"}


def policy(tier: str, decoys: object) -> dict[str, object]:
    words = {"belljar": 1, "risk": "low", "tier": tier, "user": "root"}
    return {**words, "decoys": decoys, "resources": RESOURCES}


def recorded(path: Path, kind: str) -> list[dict[str, Any]]:
    """Events of a kind in a run directory, oldest first."""
    lines = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.promise("5.6")
async def test_each_kind_is_placed_watched_and_traced(tier: str, vm_home: Path) -> None:
    """Each file has its mode and time; a read is a touch."""
    text = {"template": "code {secret}", "place": "/srv/notes.txt"}
    all_kinds = [
        {"id": kind.value, "kind": kind.value, **(text if kind is DecoyKind.TEXT else {})}
        for kind in FILES
    ]
    with start_run("test", "decoys", [], home=vm_home) as run:
        async with open_cell(policy(tier, all_kinds), run=run, home=vm_home) as cell:
            placed = recorded(run.path, "decoy.placed")
            assert {event["data"]["decoy"] for event in placed} == {kind.value for kind in FILES}
            of_its_user = ["/root/.ssh", "/root/.aws"]
            shown = await cell.exec(["stat", "-c", "%a", "/root/.ssh/id_ed25519", *of_its_user])
            assert shown.stdout.split() == [b"600", b"700", b"700"]
            await check_times(cell, read_key(run.path), all_kinds)
            shown = await cell.exec(["cat", "/root/.git-credentials"])
            secret = shown.stdout.decode().split(":")[2].split("@")[0]
            with anyio.fail_after(PATIENCE_S):
                while not recorded(run.path, "decoy.touched"):
                    await cell.ping()
                    await anyio.sleep(0.02)
        touched = recorded(run.path, "decoy.touched")
        known = digest(read_key(run.path), secret)
        (taken,) = (each for each in placed if known in each["data"]["values"].values())
        before = (run.path / "ledger.jsonl").read_text().split('"exec.started"')[0]
    assert {event["data"]["decoy"] for event in touched} == {"git_credentials"}
    assert (taken["cell"], taken["data"]["decoy"]) == (cell.id, "git_credentials")
    assert secret not in before
    assert (run.path / KEY_FILE).stat().st_mode & 0o777 == 0o600


async def check_times(cell: Cell, key: bytes, decoys: list[dict[str, str]]) -> None:
    """Each file is as old as it was minted to be; no directory above is newer than the image."""
    image_s = (await cell.stat("/etc/passwd")).mtime_s
    for decoy in decoys:
        spec = DecoySpec(**{**decoy, "kind": DecoyKind(decoy["kind"])})  # type: ignore[arg-type]
        for file in mint(key, cell.id, spec).files:
            folders = [str(path) for path in Path(file.path).parents][:-1]
            newest_s = [(await cell.stat(folder)).mtime_s for folder in folders]
            assert max(newest_s) <= image_s
            found = await cell.stat(file.path)
            assert (found.mode, found.size_bytes) == (file.mode, len(file.content))
            assert any(
                found.mtime_s == file_time(at_s, file.age_s) for at_s in (image_s, *newest_s)
            )


@pytest.mark.promise("5.6")
async def test_a_decoy_outside_the_home_is_the_users(tier: str, vm_home: Path) -> None:
    """In a directory that was made or not; the one that was there keeps its time."""
    if tier != "container":
        pytest.skip("the agent does it, the same in each tier")
    places = ("/etc/service.env", "/srv/new/app/.env")
    decoys = [{"id": f"env{n}", "kind": "dotenv", "place": place} for n, place in enumerate(places)]
    words = {**policy(tier, decoys), "user": "nobody"}
    with start_run("test", "decoys", [], home=vm_home) as run:
        async with open_cell(words, run=run, home=vm_home) as cell:
            newer = await cell.exec(["find", "/etc", "/srv", "-xdev", "-newer", "/etc/passwd"])
            shown = await cell.exec(["stat", "-c", "%U %a", *places, "/srv/new/app"])
            assert shown.stdout.splitlines() == [b"nobody 600", b"nobody 600", b"root 755"]
    assert not {b"/etc", b"/srv", b"/srv/new", *map(str.encode, places)} & set(newer.stdout.split())


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("place", ["/etc/passwd", "/proc/decoy"])
async def test_an_occupied_place_is_refused(tier: str, place: str, vm_home: Path) -> None:
    """Nothing of the image is replaced; the reason is on record."""
    if tier != "container":
        pytest.skip("the agent does it, the same in each tier")
    decoys = [{"id": "bait", "kind": "dotenv", "place": place}]
    with start_run("test", "decoys", [], home=vm_home) as run:
        with pytest.raises(PolicyError) as caught:
            async with open_cell(policy(tier, decoys), run=run, home=vm_home):
                pass
        assert recorded(run.path, "decoy.failed")
    assert caught.value.hint


@pytest.mark.promise("3.4")
async def test_a_pooled_cell_gets_its_decoys_when_it_is_taken(tier: str, vm_home: Path) -> None:
    """One that waits has none."""
    if tier != "container":
        pytest.skip("the pool is the same for each tier")
    with start_run("test", "decoys", [], home=vm_home) as run:
        async with open_pool(policy(tier, "standard"), size=1, run=run, home=vm_home) as pool:
            assert await pool.filled() == 1
            assert not recorded(run.path, "decoy.placed")
            async with pool.cell() as cell:
                await cell.stat("/root/.aws/credentials")
                assert recorded(run.path, "decoy.placed")
