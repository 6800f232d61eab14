"""Faults of the host in each tier, as a user meets them: what, where and what to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import copy_store
from tests.integration import faults
from tests.integration.conftest import Belljar
from tests.integration.faults import PATIENCE_S, Host, hide, mounted, read_only
from tests.integration.processes import wait_for

from belljar.image.store import Store
from belljar.isolation.identity import TREE_IDS_START

pytestmark = [pytest.mark.vm, pytest.mark.root]
host, policy = faults.host, faults.policy
CONTAINER = ("low", "--tier", "container")


Fault = tuple[Sequence[str], Sequence[str], Mapping[str, str], str]
# Arguments, mounts, environment, and a word of the reason or of the hint. `HOME` is the store.
QEMU = hide("qemu-system-x86_64", "qemu-system-x86_64-microvm")
FAULTS: Mapping[str, Fault] = {
    "image missing": (["IMAGE"], [], {}, "belljar image ls"),
    "QEMU missing": (["high"], QEMU, {}, "belljar setup"),
    "runtime missing": (CONTAINER, hide("runc"), {}, "install runc"),
    # As in a container: the kernel gives a jail none of its own then.
    "/proc covered": (CONTAINER, ["mount -t tmpfs none /proc/sysvipc"], {}, "systempaths="),
    "journal read-only": (
        CONTAINER,
        read_only(Path("HOME/journal")),
        {},
        "the journal can't be written: Read-only file system",
    ),
    # They keep cells of all stores apart: no cell without one.
    "locks of ids read-only": (
        CONTAINER,
        ["mount -t tmpfs -o ro tmpfs /run"],
        {},
        "the lock over a cell's ids can't be made",
    ),
}


@pytest.mark.promise("1.3")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_with_its_reason(host: Host, tmp_path: Path, fault: str) -> None:
    """Before anything runs: exit 3, what, and what to do."""
    args, mounts, environment, word = FAULTS[fault]
    (tmp_path / "image.yaml").write_text("belljar: 1\nname: x\nrisk: high\nimage: defualt\n")

    def placed(text: str) -> str:
        text = text.replace("HOME", str(host.belljar.home))
        return text.replace("IMAGE", str(tmp_path / "image.yaml"))

    said = host.refusal(
        *map(placed, args),
        mounts=[placed(mount) for mount in mounts],
        env={name: placed(value) for name, value in environment.items()},
    )
    assert word in said


@contextmanager
def store_with(prepared_home: Path, folder: Path, free_mib: int) -> Iterator[Host]:
    """A store on a file system of its own, to which images and kernels leave so much room."""
    parts = [*prepared_home.glob("images/**/*"), *prepared_home.glob("kernels/**/*")]
    (folder / "scratch").mkdir()
    size_bytes = sum(file.stat().st_size for file in parts if file.is_file()) + (free_mib << 20)
    with mounted(folder / "small", f"size={size_bytes},mode=0711") as mount:
        yield Host(Belljar(copy_store(prepared_home, mount / "store")), folder / "scratch")


def fill(folder: Path, *, but_bytes: int) -> Path:
    found = os.statvfs(folder)
    file = folder / "filling"
    with file.open("wb") as filling:
        os.posix_fallocate(filling.fileno(), 0, found.f_bavail * found.f_frsize - but_bytes)
    return file


@pytest.mark.promise("5.1")
def test_a_disk_that_is_full(prepared_home: Path, tmp_path: Path) -> None:
    """Before unpacking and amid a command: one message, the cell gone, the record verifies."""
    with store_with(prepared_home, tmp_path, 640) as small:
        store = small.belljar.home
        filling = fill(store.parent, but_bytes=100 << 20)
        assert "needs about" in small.refusal(*CONTAINER)
        assert not list(store.glob("trees/*"))
        filling.unlink()
        assert small.run("exec", *CONTAINER, "--", "true").returncode == 0
        fill(store.parent, but_bytes=160 << 10)
        much = ("head", "-c", "3000000", "/dev/urandom")
        ran = small.run("exec", *CONTAINER, "--", *much)
        assert ran.returncode == 5, ran.stderr
        assert b"can't be recorded: No space left on device\n  hint: free disk space" in ran.stderr
        assert (small.belljar.leftovers(), list(store.glob("cells/*"))) == ([], [])
        verified = small.belljar("ledger", "verify", str(small.belljar.runs()[-1]))
        assert (verified.returncode, b"unfinished" in verified.stdout) == (0, True)
        assert "exec.started" in small.kinds(small.belljar.runs()[:-1])


@pytest.mark.promise("1.8")
def test_damaged_images_and_trees(prepared_home: Path, tmp_path: Path) -> None:
    """A tree that lacks its root, and what a crash left of one, is made again."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    host = Host(Belljar(copy_store(prepared_home, tmp_path / "store")), scratch)
    trees, store = host.belljar.home / "trees", host.belljar.home
    (trees / ".making-1-1-c-000000000000" / "root").mkdir(parents=True)
    tree = trees / Store(store).find("default").digest
    tree.mkdir()
    words = {"format": 1, "first_uid": TREE_IDS_START, "first_gid": TREE_IDS_START}
    (tree / "tree.json").write_text(json.dumps(words))
    ran = host.run("exec", *CONTAINER, "--", "true")
    assert ran.returncode == 0, ran.stderr
    assert list(trees.iterdir()) == [tree]
    shutil.rmtree(tree)
    for image in store.glob("images/*/rootfs.sqfs"):
        content = bytearray(image.read_bytes())
        content[len(content) // 2] ^= 1
        image.unlink()
        image.write_bytes(content)
    said = host.refusal(*CONTAINER)
    assert "the image's bytes are not those of its digest" in said
    assert "belljar image rm" in said
    assert list(trees.iterdir()) == []


STORM = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGINT, signal.SIGINT)


@pytest.mark.promise("6.2")
@pytest.mark.parametrize(
    ("where", "moment", "signals"),
    [
        ("container", "run.started", STORM),
        ("container", "cell.destroying", [signal.SIGINT]),
        ("range", "exec.started", [signal.SIGTERM]),
    ],
)
def test_interrupted_at_each_phase(
    host: Host,
    policy: Callable[..., str],
    where: str,
    moment: str,
    signals: Sequence[signal.Signals],
) -> None:
    """Exit 130, no traceback, nothing left, a sealed record."""
    args = ("--tier", "container", policy()) if where == "range" else CONTAINER
    ends, before = moment == "cell.destroying", host.belljar.runs()
    running = host.start("exec", *args, "--", "sleep", "0.1" if ends else "600")
    wait_for(lambda: moment in host.kinds(before), moment, within_s=PATIENCE_S)
    for number in signals:
        os.killpg(running.pid, number)
    _, stderr = running.communicate(timeout=PATIENCE_S)
    # A signal that comes when all is done and sealed changes nothing, but may still end the
    # process.
    assert running.returncode == 130 or (ends and running.returncode in {0, -signals[0]}), stderr
    assert b"Traceback" not in stderr
    seen = host.kinds(before)
    assert seen[-1] == "run.finished"
    assert seen.count("range.opening") == seen.count("range.destroyed") == (where == "range")
    host.check(next(run for run in host.belljar.runs() if run not in before))
