"""Pruning the store: what may go goes, and what a living cell uses, or somebody is making, never
does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.unit.isolation.test_reap import dead_name

from belljar.image.kernel import remove_kernel
from belljar.image.store import Store
from belljar.isolation.microvm.template import lock_name
from belljar.isolation.program_root import RootRecipe, ensure_root
from belljar.isolation.prune import PrunedPart, prune, remove_part, unneeded
from belljar.store.journal import Journal, new_cell_id, own_entry
from belljar.store.locks import locked
from belljar.store.scratch import MAKING

pytestmark = pytest.mark.anyio
DAY_S = 86_400.0
IMAGE, NAMELESS, KERNEL, OLD_KERNEL = "a" * 64, "b" * 64, "c" * 64, "d" * 64
FRESH, STALE, ORPHAN, UNREADABLE = "1" * 64, "2" * 64, "3" * 64, "4" * 64
HOLD = (
    "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), getattr(fcntl,"
    " sys.argv[2])); print(flush=True); sys.stdin.read()"
)


def image(home: Path, digest: str) -> None:
    """An image as the store keeps it."""
    directory = home / "images" / digest
    directory.mkdir(parents=True)
    (directory / "rootfs.sqfs").write_bytes(b"hsqs")
    config = {
        "env": {},
        "user": "root",
        "workdir": "/",
        "entrypoint": [],
        "cmd": [],
        "created": "",
        "source": "",
    }
    (directory / "image.json").write_text(json.dumps({"size_bytes": 4, **config}))


def template(
    home: Path, key: str, *, image_digest: str = IMAGE, kernel: str = KERNEL, used_s_ago: float = 0
) -> Path:
    """A template as far as pruning looks at it."""
    directory = home / "templates" / key
    directory.mkdir(parents=True)
    inputs = {"image_digest": image_digest, "kernel_digest": kernel}
    (directory / "template.json").write_text(json.dumps({"inputs": inputs}))
    (directory / "memory").write_bytes(b"m" * 8192)
    aged(directory, used_s_ago)
    return directory


def aged(directory: Path, used_s_ago: float) -> None:
    """As if it had last been used then."""
    os.utime(directory, (time.time() - used_s_ago,) * 2)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store of the test's own."""
    return make_store(tmp_path / "store")


def make_store(store: Path) -> Path:
    """A store with an image that has a name, one that has none, and two kernels."""
    image(store, IMAGE)
    image(store, NAMELESS)
    (store / "image-names.json").write_text(json.dumps({"default": IMAGE}))
    for digest in (KERNEL, OLD_KERNEL):
        (store / "kernels" / digest).mkdir(parents=True)
    (store / "kernel-current").write_text(KERNEL + "\n")
    return store


@contextmanager
def held_by_another(path: Path, how: str = "LOCK_SH") -> Iterator[None]:
    """Another process has the lock on it."""
    argv = [sys.executable, "-c", HOLD, str(path), how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.kill()


def names(directory: Path) -> list[str]:
    """What is in it."""
    return [path.name for path in directory.iterdir()]


def everything_in(directory: Path) -> list[Path]:
    """All the way down."""
    return sorted(directory.rglob("*"))


def states(parts: tuple[PrunedPart, ...]) -> dict[str, str]:
    """What became of each."""
    return {part.path.name: part.state for part in parts}


async def test_what_is_old_or_whose_image_is_gone_goes_and_the_rest_stays(home: Path) -> None:
    """By the last use; however short ago that was where the image or the kernel is gone, or nothing
    says what it was made from."""
    fresh, stale = (
        template(home, FRESH, used_s_ago=13 * DAY_S),
        template(home, STALE, used_s_ago=15 * DAY_S),
    )
    orphan, damaged = template(home, ORPHAN, image_digest="e" * 64), template(home, UNREADABLE)
    (damaged / "template.json").write_text("{")
    other_kernel = template(home, "5" * 64, kernel="f" * 64)
    parts = await prune(home, unused_for_s=14 * DAY_S)
    assert states(parts) == dict.fromkeys((STALE, ORPHAN, UNREADABLE, "5" * 64), "removed")
    assert all(part.size_bytes >= 8192 for part in parts)
    assert fresh.exists()
    assert not any(gone.exists() for gone in (stale, orphan, damaged, other_kernel))
    assert names(home / "templates") == [FRESH]


async def test_everything_is_what_no_cell_uses(home: Path) -> None:
    """Templates however fresh, images without a name and what was made from them, other kernels;
    what has a name and the current kernel stay."""
    template(home, FRESH)
    template(home, STALE, image_digest=NAMELESS)
    assert {part.path.name for part in await prune(home, unused_for_s=14 * DAY_S)} == set()
    parts = await prune(home, unused_for_s=14 * DAY_S, everything=True)
    assert states(parts) == dict.fromkeys((FRESH, STALE, NAMELESS, OLD_KERNEL), "removed")
    assert names(home / "images") == [IMAGE]
    assert names(home / "kernels") == [KERNEL]


async def test_a_dry_run_says_the_same_and_removes_nothing(home: Path) -> None:
    """It makes no difference to what is found."""
    template(home, STALE, used_s_ago=15 * DAY_S)
    before = everything_in(home)
    said = await prune(home, unused_for_s=14 * DAY_S, dry_run=True)
    assert everything_in(home) == before
    assert set(states(said).values()) == {"unneeded"}
    done = await prune(home, unused_for_s=14 * DAY_S)
    assert states(done) == dict.fromkeys(states(said), "removed")


async def test_a_template_of_a_living_cell_stays(home: Path) -> None:
    """Its claim is a lock of the process that owns the cell: it ends with it, however that ends."""
    directory = template(home, STALE, used_s_ago=15 * DAY_S)
    with held_by_another(directory):
        assert states(await prune(home, unused_for_s=0, everything=True))[STALE] == "in use"
    assert (directory / "memory").exists()
    assert states(await prune(home, unused_for_s=14 * DAY_S)) == {STALE: "removed"}


async def test_a_template_that_is_being_made_stays(home: Path) -> None:
    """Whoever makes it has its lock; what is half made is left to each start's sweep."""
    directory = template(home, STALE, used_s_ago=15 * DAY_S)
    making = home / "templates" / (MAKING + dead_name("c-0123456789ab"))
    making.mkdir()
    lock = home / "locks" / lock_name(STALE)
    lock.parent.mkdir()
    lock.touch()
    with held_by_another(lock, "LOCK_EX"):
        assert states(await prune(home, unused_for_s=14 * DAY_S)) == {STALE: "in use"}
    assert directory.exists()
    assert making.exists()


def recipe_of(program: Path) -> RootRecipe:
    """A root with this file alone in it."""
    return RootRecipe(
        directory="vmm",
        program=program,
        what="it",
        hint="",
        files=lambda: [(str(program), program)],
        version=lambda: "1",
    )


async def test_roots_of_replaced_programs_go(home: Path, tmp_path: Path) -> None:
    """As soon as the program they were copied from is another; the root of the new one stays, as
    does everything while a cell may have it."""
    program = tmp_path / "vmm-program"
    recipe = recipe_of(program)
    program.write_text("old")
    old = ensure_root(home, recipe)
    assert await prune(home, unused_for_s=DAY_S) == ()
    program.unlink()
    program.write_text("newer")
    new = ensure_root(home, recipe)
    assert states(await prune(home, unused_for_s=DAY_S)) == {old.root.parent.name: "removed"}
    assert new.root.is_dir()
    assert not old.root.exists()


async def test_another_installation_s_files_are_not_taken_for_ones_own(
    home: Path, tmp_path: Path
) -> None:
    """Two installations share a store and a runtime: each gets the root with its own guest agent,
    whichever came first."""
    program = tmp_path / "runtime"
    program.write_text("the same")
    recipes = []
    for name in ("first", "second"):
        agent = tmp_path / name
        agent.write_text(f"agent of the {name}")
        files = [(str(program), program), ("/agent", agent)]
        recipes.append(replace(recipe_of(program), files=partial(list, files), own=(agent,)))
    for recipe, text in zip((*recipes, *recipes), ("first", "second") * 2, strict=True):
        assert (ensure_root(home, recipe).root / "agent").read_text() == f"agent of the {text}"


@pytest.mark.root
async def test_trees_go_by_the_same_rule(home: Path) -> None:
    """An unpacked image that nobody used for long, or whose image is gone; not one that a cell
    holds, nor a fresh one."""
    trees = {name: home / "trees" / name for name in (IMAGE, NAMELESS, ORPHAN)}
    for tree in trees.values():
        (tree / "root").mkdir(parents=True)
    aged(trees[IMAGE], 15 * DAY_S)
    with held_by_another(trees[IMAGE]):
        assert states(await prune(home, unused_for_s=14 * DAY_S)) == {
            IMAGE: "in use",
            ORPHAN: "removed",
        }
    assert states(await prune(home, unused_for_s=14 * DAY_S)) == {IMAGE: "removed"}
    assert names(home / "trees") == [NAMELESS]


async def test_a_store_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    """No error, and none is made."""
    assert await prune(tmp_path / "nowhere", unused_for_s=0, everything=True) == ()
    assert not (tmp_path / "nowhere").exists()


async def test_a_root_that_a_cell_was_given_since_the_look_stays(
    home: Path, tmp_path: Path
) -> None:
    """The same program installed again makes the same root anew, at the same path: it is the
    current one then."""
    program = tmp_path / "vmm-program"
    program.write_text("same")
    ensure_root(home, recipe_of(program))
    program.touch()
    (part,) = unneeded(home, DAY_S, everything=False)
    again = ensure_root(home, recipe_of(program))
    kept = await remove_part(part, home)
    assert (again.root.parent, kept.state, kept.note) == (part.path, "in use", "it is needed again")
    assert (again.root / str(program).lstrip("/")).read_text() == "same"


async def test_what_got_a_name_or_became_current_since_the_look_stays(home: Path) -> None:
    """An image that was named, a kernel that was fetched again."""
    found = {part.kind: part for part in unneeded(home, 0, everything=True)}
    store = Store(home)
    store.name(store.find(NAMELESS), "keep")
    (home / "kernel-current").write_text(OLD_KERNEL + "\n")
    assert {
        kind: (await remove_part(part, home)).state for kind, part in found.items()
    } == dict.fromkeys(("image", "kernel"), "in use")
    assert store.find("keep").digest == NAMELESS
    assert len(names(home / "kernels")) == 2


async def test_what_cells_that_started_since_the_look_may_have_stays(
    home: Path, tmp_path: Path
) -> None:
    """A root, a kernel and an image bear no claim: none goes while any cell lives."""
    program = tmp_path / "vmm-program"
    program.write_text("old")
    ensure_root(home, recipe_of(program))
    program.write_text("newer")
    found = unneeded(home, 0, everything=True)
    assert {part.kind for part in found} == {"root", "kernel", "image"}
    entry = own_entry(new_cell_id(), "cell")
    Journal(home).write(entry)
    before = everything_in(home)
    try:
        assert {(await remove_part(part, home)).state for part in found} == {"in use"}
        assert everything_in(home) == before
    finally:
        Journal(home).remove(entry.cell_id)


async def test_two_prunes_at_once_are_no_error(home: Path, tmp_path: Path) -> None:
    """What the other removed first, of each kind, is removed."""
    program = tmp_path / "vmm-program"
    program.write_text("old")
    ensure_root(home, recipe_of(program))
    program.write_text("newer")
    template(home, STALE)
    (home / "trees" / IMAGE).mkdir(parents=True)
    found = unneeded(home, 0, everything=True)
    assert {part.kind for part in found} == {"root", "kernel", "image", "template", "tree"}
    for part in found:
        shutil.rmtree(part.path)
    assert {(await remove_part(part, home)).state for part in found} == {"removed"}


def test_a_part_that_goes_while_prune_looks_is_not_found(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error: another prune was quicker between the listing and the look."""
    for name in (IMAGE, NAMELESS):
        (home / "trees" / name).mkdir(parents=True)
    is_dir = Path.is_dir

    def and_then_it_goes(path: Path) -> bool:
        there = is_dir(path)
        if path.parent.name in {"trees", "kernels"}:
            shutil.rmtree(path)
        return there

    monkeypatch.setattr(Path, "is_dir", and_then_it_goes)
    assert {part.kind for part in unneeded(home, 0, everything=True)} <= {"image", "tree"}


def test_a_kernel_is_removed_in_turn_with_who_fetches_one(home: Path) -> None:
    """What is made the current one under the lock, while its removal waits for that, stays; where
    nothing says which is current, each does."""
    with locked(home, "kernels"):
        remover = threading.Thread(target=remove_kernel, args=(home, OLD_KERNEL))
        remover.start()
        while remover.is_alive() and not waited_for(home / "locks" / "kernels"):
            continue
        (home / "kernel-current").write_text(OLD_KERNEL + "\n")
    remover.join()
    (home / "kernel-current").unlink()
    remove_kernel(home, OLD_KERNEL)
    assert sorted(names(home / "kernels")) == [KERNEL, OLD_KERNEL]


def waited_for(lock: Path) -> bool:
    """Whether somebody waits for it, by the kernel's word."""
    inode = f":{lock.stat().st_ino} "
    return any(
        "->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()
    )
