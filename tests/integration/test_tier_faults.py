"""Faults of the host in the container and gVisor tiers, as a user meets them: what, where and what
to do; the right exit code; nothing left; and it is on record."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from tests.conftest import copy_store
from tests.fakes.compiled import compile_static
from tests.integration.conftest import Belljar
from tests.integration.processes import wait_for
from tests.integration.remains import Remains, cells_of, within

from belljar.isolation import identity
from belljar.isolation.oci import container
from belljar.isolation.proofs import prove_runtime
from belljar.plan.oci import OciRuntime

pytestmark = [pytest.mark.vm, pytest.mark.root]

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
        if (!is(self, "mute")) printf("%.4s version %s\\n", self, is(self, "old") ? "1.0.3" : "20250101.0");
        return 0;
    }
    if (is(self, "hangs")) for (;;) pause();
    if (is(self, "speaks")) fprintf(stderr, "no\\033[31m such thing\\n");
    if (is(self, "aborts")) abort();
    return is(self, "idle") ? 0 : 3;
}
"""


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A program that takes itself for an OCI runtime and behaves as its name says."""
    folder = tmp_path_factory.mktemp("runtimes")
    (folder / "runtime.c").write_text(RUNTIME)
    compile_static(folder / "runtime.c", folder / "runtime")

    def named(name: str) -> str:
        return str(shutil.copy(folder / "runtime", folder / name))

    return named


@dataclass(frozen=True)
class Host:
    """Runs commands on a store, on a host that lacks something, and looks at what they leave."""

    belljar: Belljar
    scratch: Path
    timeout_s: float = 120

    def run(
        self, *args: str, mounts: Sequence[str] = (), **extra: str
    ) -> subprocess.CompletedProcess[bytes]:
        """A command line in a mount namespace of its own in which these shell commands came
        first."""
        words = [sys.executable, "-m", "belljar", *args]
        argv = ["unshare", "--mount", "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh", *words]
        environment = self.belljar.environment(TMPDIR=str(self.scratch), **extra)
        return subprocess.run(
            argv, env=environment, capture_output=True, timeout=self.timeout_s, check=False
        )

    def refusal(self, tier: str, *mounts: str, code: int = 3, **extra: str) -> str:
        """What `exec` in the tier says when it can't; on record, and nothing is left."""
        before = len(self.belljar.runs())
        ran = self.run("exec", "low", "--tier", tier, "--", "true", mounts=mounts, **extra)
        said = ran.stderr.decode()
        assert (ran.returncode, ran.stdout) == (code, b""), said
        assert "Traceback" not in said
        assert "\n  hint: " in said
        (run,) = self.belljar.runs()[before:]
        kinds = {event["kind"] for event in self.belljar.events(run)}
        assert kinds & {"policy.refused", "cell.failed"}, kinds
        self.check(run)
        return said

    def check(self, run: Path) -> None:
        """Nothing is left of a run's cells; its record verifies."""
        remains = Remains(self.belljar.home, os.getpid(), self.scratch)
        assert within(60, lambda: remains.of(cells_of(run), ())) == []
        verified = self.belljar("ledger", "verify", str(run))
        assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.fixture
def host(home: Path, tmp_path: Path) -> Host:
    """This host, with the session's store."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return Host(Belljar(home), scratch)


@pytest.mark.promise("1.3")
@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("no-such-runtime", ["no-such-runtime is missing", "unset it to use runc"]),
        ("/nowhere/runc", ["/nowhere/runc is missing", "unset it to use runc"]),
        ("/etc", ["/etc is no program that this user can run"]),
        ("/usr/bin/ls", ["/usr/bin/ls doesn't say its version, as every OCI runtime does"]),
        ("runsc", ["the gvisor tier's runtime", "unset BELLJAR_OCI_RUNTIME"]),
        ("@mute", ["doesn't say its version"]),
        ("@old", ["1.0.3 is too old: 1.1 or newer is needed"]),
        (
            "@fails",
            [
                "ended with status 3, and printed nothing",
                "another OCI runtime in BELLJAR_OCI_RUNTIME",
            ],
        ),
        ("@speaks", ["ended with status 3, and printed: no\\x1b[31m such thing"]),
        ("@idle", ["ended with status 0, but it left no process behind"]),
        ("@aborts", ["ended with signal 6, and printed nothing"]),
    ],
)
def test_a_runtime_that_will_not_do(
    host: Host, runtimes: Callable[[str], str], runtime: str, words: Sequence[str]
) -> None:
    """Missing, no runtime, too old, mute or failing: which, which version, how it ended, what it
    said or that it said nothing, and what to do."""
    named = runtimes(runtime[1:]) if runtime.startswith("@") else runtime
    said = host.refusal("container", BELLJAR_OCI_RUNTIME=named)
    assert [word for word in words if word not in said] == [], said


def test_a_script_is_no_runtime(host: Host, tmp_path: Path) -> None:
    """It would need its interpreter in the jail: what to name instead is said."""
    script = tmp_path / "runc"
    script.write_text("#!/bin/sh\necho runc version 1.2.0\n")
    script.chmod(0o755)
    said = host.refusal("container", BELLJAR_OCI_RUNTIME=str(script))
    assert "a script, perhaps" in said
    assert "name the program that the script runs" in said


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_runtime_that_hangs(
    host: Host, runtimes: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given up after a while, told as what it is, and killed."""
    monkeypatch.setattr(container, "_READY_DEADLINE_S", 1.0)
    runtime = OciRuntime(name="runc", kind="runc", path=runtimes("oci-hangs"), version="1.1")
    with anyio.fail_after(60):
        proof = await prove_runtime(runtime, home=host.belljar.home)
    assert re.search(r"neither started the container nor ended within \d+ s", proof.reason)
    assert proof.hint
    assert (
        within(60, lambda: Remains(host.belljar.home, os.getpid(), host.scratch).of((), ())) == []
    )


def test_runsc_missing_or_failing(
    host: Host, runtimes: Callable[[str], str], tmp_path: Path
) -> None:
    """In the tier that needs it: refused with the hint. Where the risk leaves the choice: the
    stronger tier, and the plan says why."""
    nothing = tmp_path / "nothing"
    nothing.touch(mode=0o644)
    runsc = shutil.which("runsc")
    missing = f"mount --bind {nothing} {runsc}"
    said = host.refusal("gvisor", missing)
    assert "runsc is missing" in said
    assert "belljar setup" in said
    said = host.refusal("gvisor", f"mount --bind {runtimes('oci-fails')} {runsc}")
    assert "runsc 20250101" in said
    assert "ended with status 3, and printed nothing" in said
    planned = host.run("plan", "medium", "--no-prove", mounts=[missing])
    assert planned.returncode == 0
    assert b"microvm" in planned.stdout
    assert b"runsc is missing" in planned.stdout


def test_a_runtime_below_tmp_works(host: Host) -> None:
    """The jail has file systems of its own at /tmp and /run: the runtime is not hidden by them."""
    runc = host.scratch / "runc"
    shutil.copy(str(shutil.which("runc", path="/usr/sbin:/usr/bin")), runc)
    ran = host.run(
        "exec", "low", "--tier", "container", "--", "echo", "fine", BELLJAR_OCI_RUNTIME=str(runc)
    )
    assert (ran.returncode, ran.stdout) == (0, b"fine\n"), ran.stderr


@pytest.mark.promise("1.3")
def test_a_remembered_failure_does_not_last(host: Host) -> None:
    """It is believed for a moment, so that a run's cells do not each try again; `doctor` tries at
    once, and so does the next command after a while."""
    assert host.run("exec", "low", "--tier", "container", "--", "true").returncode == 0
    cache = host.belljar.home / "facts/runtimes.json"

    def refute(ago_s: int) -> None:
        facts = json.loads(cache.read_text())
        for fact in facts.values():
            if isinstance(fact, dict) and fact["for"].startswith("container, "):
                fact |= {
                    "state": "refuted",
                    "reason": "it was broken",
                    "at_s": int(time.time()) - ago_s,
                }
        cache.write_text(json.dumps(facts))

    refute(0)
    assert "it was broken" in host.refusal("container")
    doctor = json.loads(host.run("doctor", "--json").stdout)
    assert doctor["tiers"]["container"] is True
    refute(3600)
    assert host.run("exec", "low", "--tier", "container", "--", "true").returncode == 0


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
        said = host.refusal(
            "container",
            "mkdir -p /run/belljar/ids",
            f"mount --bind {tmp_path}/ids /run/belljar/ids",
        )
    assert "all 4,096 id slots for cells are taken" in said
    assert "belljar ps" in said


@pytest.mark.parametrize("path", ["/proc/sysvipc", "/sys/power"])
def test_kernel_files_that_are_covered(host: Host, path: str) -> None:
    """As in a container: the kernel gives a jail none of its own then; how to have them whole."""
    said = host.refusal("container", f"mount -t tmpfs none {path}")
    assert "kernel's file systems" in said
    assert "systempaths=unconfined" in said


def read_only(path: Path) -> tuple[str, str, str]:
    """For root too."""
    return f"mkdir -p {path}", f"mount --bind {path} {path}", f"mount -o remount,bind,ro {path}"


def test_a_store_that_can_not_be_written(host: Host) -> None:
    """Without a record nothing may run: exit 3 in every tier; `doctor` says it, and says that it is
    the file system."""
    runs, mounts = host.belljar.runs(), read_only(host.belljar.home)
    for tier in ("container", "gvisor"):
        ran = host.run("exec", "low", "--tier", tier, "--", "true", mounts=mounts)
        assert ran.returncode == 3
        assert b"Read-only file system" in ran.stderr
        assert b"\n  hint: set BELLJAR_HOME" in ran.stderr
    assert host.belljar.runs() == runs
    doctor = host.run("doctor", "--no-prove", mounts=mounts)
    assert doctor.returncode == 3
    assert b"read-only" in doctor.stdout
    assert b"No tier can be used here" in doctor.stdout


@pytest.mark.parametrize(
    ("part", "words"),
    [("journal", "the journal can't be written"), ("cells", "a cell's files can't be written")],
)
def test_a_part_of_the_store_that_can_not_be_written(host: Host, part: str, words: str) -> None:
    """Read-only or full: named with its path, and set right by what is said."""
    path = host.belljar.home / part
    said = host.refusal("container", *read_only(path))
    assert f"{words}: Read-only file system" in said
    assert str(path) in said
    full = f"mount -t tmpfs -o nr_inodes=1 tmpfs {path}"
    said = host.refusal("gvisor", f"mkdir -p {path}", full)
    assert f"{words}: No space left on device" in said
    assert "make room" in said


def test_locks_of_ids_that_can_not_be_written(host: Host) -> None:
    """They keep cells of all stores apart: no cell without one."""
    said = host.refusal("container", "mount -t tmpfs -o ro tmpfs /run")
    assert "the lock over a cell's ids can't be made: Read-only file system" in said


@pytest.fixture
def small(prepared_home: Path, tmp_path: Path) -> Iterator[Host]:
    """A store on a file system of its own: images and kernels leave it 400 MiB, which an unpacked
    image fits into."""
    mount, scratch = tmp_path / "small", tmp_path / "scratch"
    mount.mkdir()
    scratch.mkdir()
    parts = [
        file
        for name in ("images", "kernels")
        for file in (prepared_home / name).rglob("*")
        if file.is_file()
    ]
    size_bytes = sum(file.stat().st_size for file in parts) + (640 << 20)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0711", "tmpfs", str(mount)],
        check=True,
    )
    try:
        yield Host(Belljar(copy_store(prepared_home, mount / "store")), scratch)
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def fill(folder: Path, *, but_bytes: int) -> Path:
    """A file that leaves so much room."""
    found = os.statvfs(folder)
    file = folder / "filling"
    with file.open("wb") as filling:
        os.posix_fallocate(filling.fileno(), 0, found.f_bavail * found.f_frsize - but_bytes)
    return file


@pytest.mark.promise("5.1")
def test_a_disk_that_is_full(small: Host) -> None:
    """Before the image is unpacked, and in the midst of a command: one message; the cell is gone,
    its journal too; what is recorded verifies."""
    store = small.belljar.home
    filling = fill(store.parent, but_bytes=100 << 20)
    ran = small.run("exec", "low", "--tier", "container", "--", "true")
    assert ran.returncode == 3
    assert "needs about" in ran.stderr.decode()
    assert not list(store.glob("trees/*"))
    filling.unlink()
    assert small.run("exec", "low", "--tier", "container", "--", "true").returncode == 0
    fill(store.parent, but_bytes=160 << 10)
    ran = small.run(
        "exec", "low", "--tier", "container", "--", "head", "-c", "3000000", "/dev/urandom"
    )
    assert ran.returncode == 5, ran.stderr
    assert b"can't be recorded: No space left on device\n  hint: free disk space" in ran.stderr
    assert (small.belljar.leftovers(), list(store.glob("cells/*"))) == ([], [])
    verified = small.belljar("ledger", "verify", str(small.belljar.runs()[-1]))
    assert (verified.returncode, b"unfinished" in verified.stdout) == (0, True)
    assert any(
        event["kind"] == "exec.started" for event in small.belljar.events(small.belljar.runs()[-1])
    )


@pytest.mark.promise("1.8")
def test_damaged_images_and_trees(prepared_home: Path, tmp_path: Path) -> None:
    """A tree that lacks its root, and what a crash left of one, is made again. From an image that
    is not what its digest says nothing is made."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    host = Host(Belljar(copy_store(prepared_home, tmp_path / "store")), scratch)
    trees, store = host.belljar.home / "trees", host.belljar.home
    (trees / ".making-1-1-c-000000000000" / "root").mkdir(parents=True)
    ran = host.run("exec", "low", "--tier", "container", "--", "true")
    assert ran.returncode == 0, ran.stderr
    (tree,) = trees.iterdir()
    shutil.rmtree(tree / "root")
    assert host.run("exec", "low", "--tier", "gvisor", "--", "true").returncode == 0
    shutil.rmtree(tree)
    for image in store.glob("images/*/rootfs.sqfs"):
        content = bytearray(image.read_bytes())
        content[len(content) // 2] ^= 1
        image.unlink()
        image.write_bytes(content)
    said = host.refusal("container")
    assert "the image's bytes are not those of its digest" in said
    assert "belljar image rm" in said
    assert list(trees.iterdir()) == []


PHASES = (
    "cell.planned",
    "cell.starting",
    "cell.started",
    "exec.started",
    "exec.completed",
    "cell.destroying",
)


@pytest.mark.parametrize(
    ("tier", "phase"),
    [
        *(("container", phase) for phase in PHASES),
        ("gvisor", "exec.started"),
        *(
            pytest.param("gvisor", phase, marks=pytest.mark.thorough)
            for phase in ("cell.starting", "cell.destroying")
        ),
    ],
)
def test_interrupted_at_each_phase(host: Host, tier: str, phase: str) -> None:
    """Ctrl-C or SIGTERM while a cell is made, works or is unmade: exit 130, no traceback, nothing
    left, a sealed record."""
    number = signal.SIGINT if PHASES.index(phase) % 2 else signal.SIGTERM
    ends = phase in {"exec.completed", "cell.destroying"}
    before = host.belljar.runs()
    running = host.belljar.start(
        "exec",
        "low",
        "--tier",
        tier,
        "--",
        "sleep",
        "0.1" if ends else "600",
        TMPDIR=str(host.scratch),
    )

    def newest() -> Path | None:
        new = [run for run in host.belljar.runs() if run not in before]
        return new[-1] if new and (new[-1] / "ledger.jsonl").exists() else None

    def reached() -> bool:
        return (run := newest()) is not None and f'"{phase}"'.encode() in (
            run / "ledger.jsonl"
        ).read_bytes()

    wait_for(reached, phase, within_s=60)
    os.killpg(running.pid, number)
    _, stderr = running.communicate(timeout=60)
    # A signal that comes when all is done and sealed changes nothing, but may still end the
    # process.
    assert running.returncode == 130 or (ends and running.returncode in {0, -number}), stderr
    assert b"Traceback" not in stderr
    run = newest()
    assert run is not None
    assert host.belljar.events(run)[-1]["kind"] == "run.finished"
    host.check(run)
