"""Faults of the host in each tier, as a user meets them: what, where and what to do; the right exit
code; it is on record, and nothing is left."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest
from tests.conftest import copy_store
from tests.fakes.compiled import compile_static
from tests.integration import faults
from tests.integration.conftest import Belljar
from tests.integration.faults import PATIENCE_S, Host, hide, mounted, read_only
from tests.integration.processes import wait_for
from tests.integration.remains import Remains, within

from belljar.image.store import Store
from belljar.isolation import identity
from belljar.isolation.identity import TREE_IDS_START
from belljar.isolation.oci import container
from belljar.isolation.proofs import prove_runtime
from belljar.plan.oci import OciRuntime

pytestmark = [pytest.mark.vm, pytest.mark.root]
host, policy = faults.host, faults.policy
CONTAINER, GVISOR = ("low", "--tier", "container"), ("low", "--tier", "gvisor")

# What it is like is in its name: it lies where it is copied to, in the jail too.
RUNTIME = """\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char *self, const char *how) { return strstr(self, how) != NULL; }

int main(int argc, char **argv) {
    const char *self = strrchr(argv[0], '/') + 1;
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        printf("%.4s version %s\\n", self, is(self, "old") ? "1.0.3" : "20250101.0");
        return 0;
    }
    if (is(self, "hangs")) for (;;) pause();
    if (is(self, "speaks")) fprintf(stderr, "no\\033[31m such thing\\n");
    return is(self, "idle") ? 0 : 3;
}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A program that takes itself for an OCI runtime and behaves as its name says."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "runtime.c").write_text(RUNTIME)
    compile_static(folder / "runtime.c", folder / "runtime")
    for name, text in (
        ("script", "#!/bin/sh\necho runc version 1.2.0\n"),
        ("qemu", "#!/bin/sh\necho 'QEMU emulator version 7.2.18 (Debian)'\n"),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    def named(name: str) -> str:
        if not (folder / name).exists():
            shutil.copy(folder / "runtime", folder / name)
        return str(folder / name)

    return named


def runtime(path: str) -> Mapping[str, str]:
    """The environment that names this OCI runtime."""
    return {"BELLJAR_OCI_RUNTIME": path}


Fault = tuple[Sequence[str], Sequence[str], Mapping[str, str], str]
# Arguments, mounts, environment, and a word of the reason or of the hint. `HOME` is the store, and
# a name behind `@` one of `programs`.
QEMU = hide("qemu-system-x86_64", "qemu-system-x86_64-microvm")
FAULTS: Mapping[str, Fault] = {
    "image missing": (["IMAGE"], [], {}, "belljar image ls"),
    "QEMU missing": (["high"], QEMU, {}, "belljar setup"),
    "QEMU too old": (["high"], [line.replace("/dev/null", "@qemu") for line in QEMU], {}, "8.2"),
    "runtime missing": (CONTAINER, [], runtime("no-such-runtime"), "unset it to use runc"),
    "runtime a directory": (CONTAINER, [], runtime("/etc"), "no program that this user can run"),
    "no OCI runtime": (CONTAINER, [], runtime("/usr/bin/ls"), "doesn't say its version"),
    "runtime of gVisor's tier": (CONTAINER, [], runtime("runsc"), "unset BELLJAR_OCI_RUNTIME"),
    "runtime too old": (CONTAINER, [], runtime("@old"), "1.1 or newer is needed"),
    "runtime fails": (CONTAINER, [], runtime("@speaks"), "and printed: no\\x1b[31m such thing"),
    "runtime starts nothing": (CONTAINER, [], runtime("@idle"), "left no process behind"),
    "runtime a script": (CONTAINER, [], runtime("@script"), "can be put into a jail"),
    "runsc missing": (GVISOR, hide("runsc"), {}, "belljar setup"),
    "runsc fails": (
        GVISOR,
        [mount.replace("/dev/null", "@oci-fails") for mount in hide("runsc")],
        {},
        "ended with status 3, and printed nothing",
    ),
    # As in a container: the kernel gives a jail none of its own then.
    "/proc covered": (CONTAINER, ["mount -t tmpfs none /proc/sysvipc"], {}, "systempaths="),
    "/sys covered": (CONTAINER, ["mount -t tmpfs none /sys/power"], {}, "systempaths=unconfined"),
    "journal read-only": (
        CONTAINER,
        read_only(Path("HOME/journal")),
        {},
        "the journal can't be written: Read-only file system",
    ),
    "cells' disk full": (
        GVISOR,
        ["mkdir -p HOME/cells", "mount -t tmpfs -o nr_inodes=1 tmpfs HOME/cells"],
        {},
        "a cell's files can't be written: No space left on device",
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
def test_a_fault_is_refused_with_its_reason(
    host: Host, programs: Callable[[str], str], tmp_path: Path, fault: str
) -> None:
    """Before anything runs: exit 3, what, and what to do."""
    args, mounts, environment, word = FAULTS[fault]
    (tmp_path / "image.yaml").write_text("belljar: 1\nname: x\nrisk: high\nimage: defualt\n")

    def placed(text: str) -> str:
        text = text.replace("HOME", str(host.belljar.home))
        text = text.replace("IMAGE", str(tmp_path / "image.yaml"))
        return re.sub(r"@([\w-]+)", lambda found: programs(found[1]), text)

    said = host.refusal(
        *map(placed, args),
        mounts=[placed(mount) for mount in mounts],
        env={name: placed(value) for name, value in environment.items()},
    )
    assert word in said


@pytest.mark.promise("1.2")
def test_critical_without_hardware_is_refused(host: Host) -> None:
    """Risk critical runs under proven hardware virtualisation or not at all."""
    if Path("/dev/kvm").exists():
        facts = json.loads(host.belljar("doctor", "--json").stdout)
        if facts["facts"]["kvm"]["state"] == "proven":
            pytest.skip("this host has hardware virtualisation")
    assert "KVM" in host.refusal("critical")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_runtime_that_hangs(
    host: Host, programs: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given up after a while, told as what it is, and killed."""
    monkeypatch.setattr(container, "_READY_DEADLINE_S", 1.0)
    hangs = OciRuntime(name="runc", kind="runc", path=programs("oci-hangs"), version="1.1")
    with anyio.fail_after(PATIENCE_S):
        proof = await prove_runtime(hangs, home=host.belljar.home)
    assert re.search(r"neither started the container nor ended within \d+ s", proof.reason)
    assert proof.hint
    remains = Remains(host.belljar.home, os.getpid(), host.scratch)
    assert within(60, lambda: remains.of((), ())) == []


def test_without_runsc_the_stronger_tier_is_planned(host: Host) -> None:
    """Where the risk leaves the choice; the plan says why."""
    planned = host.run("plan", "medium", "--no-prove", mounts=hide("runsc"))
    assert planned.returncode == 0
    assert b"microvm" in planned.stdout
    assert b"runsc is missing" in planned.stdout


def test_a_runtime_below_tmp_works(host: Host) -> None:
    """The jail has file systems of its own at /tmp and /run: the runtime is not hidden by them."""
    runc = host.scratch / "runc"
    shutil.copy(str(shutil.which("runc", path="/usr/sbin:/usr/bin")), runc)
    ran = host.run("exec", *CONTAINER, "--", "echo", "fine", **runtime(str(runc)))
    assert (ran.returncode, ran.stdout) == (0, b"fine\n"), ran.stderr


@pytest.mark.promise("1.3")
def test_a_remembered_failure_does_not_last(host: Host) -> None:
    """It is believed for a moment; `doctor` tries at once, the next command after a while."""
    assert host.run("exec", *CONTAINER, "--", "true").returncode == 0
    cache = host.belljar.home / "facts/runtimes.json"

    def refute(ago_s: int) -> None:
        facts = json.loads(cache.read_text())
        for fact in facts.values():
            if isinstance(fact, dict) and fact["for"].startswith("container, "):
                fact |= {"state": "refuted", "reason": "it was broken"}
                fact["at_s"] = int(time.time()) - ago_s
        cache.write_text(json.dumps(facts))

    refute(0)
    assert "it was broken" in host.refusal(*CONTAINER)
    doctor = json.loads(host.run("doctor", "--json").stdout)
    assert doctor["tiers"]["container"] is True
    refute(3600)
    assert host.run("exec", *CONTAINER, "--", "true").returncode == 0


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Every slot locked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, identity.RANGE_SLOTS + 1024), hard))
    folder.mkdir()
    with ExitStack() as held:
        for slot in range(identity.RANGE_SLOTS):
            file = held.enter_context((folder / str(slot)).open("wb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_every_range_of_ids_is_taken(host: Host, tmp_path: Path) -> None:
    """4,096 living cells on one host: refused, and what to do."""
    with taken(tmp_path / "ids"):
        bound = ["mkdir -p /run/belljar/ids", f"mount --bind {tmp_path}/ids /run/belljar/ids"]
        assert "all 4,096 id slots for cells are taken" in host.refusal(*CONTAINER, mounts=bound)


def test_a_store_that_can_not_be_written(host: Host) -> None:
    """Without a record nothing may run; `doctor` says that it is the file system."""
    runs, mounts = host.belljar.runs(), read_only(host.belljar.home)
    ran = host.run("exec", *CONTAINER, "--", "true", mounts=mounts)
    assert ran.returncode == 3
    assert b"Read-only file system" in ran.stderr
    assert b"\n  hint: set BELLJAR_HOME" in ran.stderr
    assert host.belljar.runs() == runs
    doctor = host.run("doctor", "--no-prove", mounts=mounts)
    assert doctor.returncode == 3
    assert b"read-only" in doctor.stdout


@contextmanager
def store_with(prepared_home: Path, folder: Path, free_mib: int) -> Iterator[Host]:
    """A store on a file system of its own, to which images and kernels leave so much room."""
    parts = [*prepared_home.glob("images/**/*"), *prepared_home.glob("kernels/**/*")]
    (folder / "scratch").mkdir()
    size_bytes = sum(file.stat().st_size for file in parts if file.is_file()) + (free_mib << 20)
    with mounted(folder / "small", f"size={size_bytes},mode=0711") as mount:
        yield Host(Belljar(copy_store(prepared_home, mount / "store")), folder / "scratch")


def test_no_disk_space_for_a_template(prepared_home: Path, tmp_path: Path) -> None:
    """One clear message, exit 3, and no half-made template."""
    with store_with(prepared_home, tmp_path, 40) as small:
        assert "space" in small.refusal("high")
        assert not list(small.belljar.home.glob("templates/*/template.json"))


def test_no_disk_space_for_an_image(tmp_path: Path) -> None:
    """A store without room for an image: one clear message, exit 3, and nothing of the image."""
    with mounted(tmp_path / "small", "size=8m,mode=0711") as mount:
        ran = Belljar(mount / "store")("image", "build", "default")
        assert ran.returncode == 3, ran.stderr
        assert "free" in ran.stderr.decode()
        assert not list((mount / "store").glob("images/*"))


def fill(folder: Path, *, but_bytes: int) -> Path:
    """A file that leaves so much room."""
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
    """A tree that lacks its root, and what a crash left of one, is made again. From an image that
    is not what its digest says nothing is made."""
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
        ("container", "cell.starting", [signal.SIGINT]),
        pytest.param("container", "exec.started", [signal.SIGTERM], marks=pytest.mark.thorough),
        ("container", "cell.destroying", [signal.SIGINT]),
        pytest.param("gvisor", "cell.starting", [signal.SIGTERM], marks=pytest.mark.thorough),
        ("microvm", "exec.started", STORM),
        ("range", "range.opening", [signal.SIGINT]),
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
    args = {"microvm": ("high",), "range": ("--tier", "container", policy())}.get(
        where, ("low", "--tier", where)
    )
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
