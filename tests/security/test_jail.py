"""A hostile program in the VMM's place, in the real jail, as root's and as an ordinary user's: it
can neither change, see, reach nor outlive anything."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.compiled import compile_static
from tests.integration.as_user import copy_package, users_python
from tests.machine import PATIENCE_S, public_folder

import belljar

HERE = Path(__file__).parent
USERS = ("root", "user")
# Root in the container that tests run in may lack these; elsewhere the control shows them to work.
UNSURE_CONTROLS = {
    "socket_vsock",
    "use_io_uring",
    "use_userfaultfd",
    "use_bpf",
    "use_keyring",
    "trace_process",
    "clone3_user_namespace",
    "list_mounts",
    "call_of_tomorrow",
}
# An ordinary user can't do these outside either: their proof is root's control.
ROOT_ONLY = {
    "remount_image", "remount_root", "mount_tmpfs", "chroot_away", "become_root", "become_root_group", "join_group", "gain_capabilities", "hold_capability",
    "new_network_namespace", "make_device", "use_bpf", "see_any_process", "see_host_process", "use_userfaultfd", "dump_core",
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A directory that a user owns, with the probe as a jail's root and an image; and how to run
    the runner as that user."""

    user: str
    directory: Path
    argv: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def image(self) -> Path:
        """What the jailed program must not change."""
        return self.directory / "image"

    def start(self, mode: str, lifetime_s: float = 60) -> subprocess.Popen[str]:
        """The runner, as the stage's user."""
        words = (
            *self.argv,
            str(self.directory / "jail_runner.py"),
            str(self.directory / "root"),
            str(self.image),
            mode,
            str(lifetime_s),
        )
        return subprocess.Popen(
            words,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
        )

    def run(self, mode: str, lifetime_s: float = 60) -> dict[str, str]:
        """The runner to its end; what it said, by the first word."""
        with self.start(mode, lifetime_s) as process:
            output = process.communicate(timeout=100)[0]
        assert process.returncode == 0, output
        return dict(line.split(" ", 1) for line in output.splitlines() if " " in line)


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hostile program, compiled as static as the VMM's jail needs it."""
    return compile_static(HERE / "jail_probe.c", tmp_path_factory.mktemp("probe") / "probe")


@pytest.fixture(scope="module")
def readable_package() -> Iterator[Path]:
    """The package where any user can read it: a checkout may be its owner's alone."""
    with tempfile.TemporaryDirectory(prefix="package-", dir=public_folder()) as folder:
        Path(folder).chmod(0o755)
        yield copy_package(Path(folder) / "site")


@pytest.fixture(params=USERS)
def stage(request: pytest.FixtureRequest, probe: Path, readable_package: Path) -> Iterator[Stage]:
    """Once for root, once for an ordinary user (only that one, when the tests themselves are run by
    one)."""
    is_root = os.geteuid() == 0
    if request.param == "root" and not is_root:
        pytest.skip("needs root")
    directory = Path(tempfile.mkdtemp(prefix="jail-", dir=public_folder()))
    make_stage(directory, probe)
    shutil.copy(HERE / "jail_runner.py", directory)
    argv: tuple[str, ...] = (sys.executable,)
    environment = {
        "PYTHONPATH": str(Path(belljar.__file__).parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if request.param == "user" and is_root:
        uid, gid = request.getfixturevalue("ordinary_user")
        for path in (directory, *directory.rglob("*")):
            os.chown(path, uid, gid)
        argv = (
            "/usr/bin/setpriv",
            f"--reuid={uid}",
            f"--regid={gid}",
            "--clear-groups",
            users_python(uid, gid),
        )
        environment["PYTHONPATH"] = str(readable_package)
    try:
        yield Stage(user=request.param, directory=directory, argv=argv, environment=environment)
    finally:
        shutil.rmtree(directory)


def make_stage(directory: Path, probe: Path) -> None:
    """The root with nothing but the probe, and the image."""
    (directory / "root" / "i").mkdir(parents=True)
    (directory / "root" / "i" / "image").touch()
    shutil.copy(probe, directory / "root" / "probe")
    (directory / "image").write_bytes(b"precious" * 1024)
    directory.chmod(0o711)


def gone(pidfd: int, deadline_s: float = 60.0) -> bool:
    """Whether the process ends in time."""
    return bool(select.select([pidfd], [], [], deadline_s)[0])


@pytest.mark.promise("2.1", "8.2")
def test_every_attack_fails_in_the_jail(stage: Stage) -> None:
    """Whoever started it: nothing is written, remounted, seen, reached, gained or left over; the
    image is byte for byte what it was."""
    said = stage.run("attack")
    attacks = {
        name: int(errno)
        for name, errno in said.items()
        if name not in {"uid", "ended", "diagnosis"}
    }
    assert len(attacks) == 48, said
    assert {name for name, errno in attacks.items() if errno == 0} == set()
    assert {name for name, errno in attacks.items() if errno > 199} == set(), (
        "an attack was ended by a signal, not refused"
    )
    assert stage.image.read_bytes() == b"precious" * 1024
    assert said["uid"] == "1000"
    assert said["ended"] == "None 0 itself"


@pytest.mark.promise("2.1")
def test_the_same_attacks_succeed_outside(stage: Stage) -> None:
    """The control: without the jail the same program succeeds, so that its failures inside mean
    something."""
    words = (
        str(stage.directory / "root" / "probe"),
        "1",
        "control",
        str(os.getppid()),
        str(stage.image),
    )
    prefix = stage.argv[:-1] if len(stage.argv) > 1 else ()
    result = subprocess.run(
        (*prefix, *words), env={"A": "b"}, capture_output=True, text=True, check=True, cwd="/"
    )
    attacks = {
        name: int(errno) for name, errno in (line.split() for line in result.stdout.splitlines())
    }
    Path("/tmp/.probe-device").unlink(missing_ok=True)
    excused = (
        UNSURE_CONTROLS | {"extra_descriptor"} | (ROOT_ONLY if stage.user == "user" else set())
    )
    assert {
        name: errno
        for name, errno in attacks.items()
        if errno and name not in excused and name != "uid"
    } == {}


@pytest.mark.promise("3.2")
@pytest.mark.root
@pytest.mark.parametrize("stage", ["root"], indirect=True)
def test_root_gives_each_jail_a_host_uid_of_its_own(stage: Stage) -> None:
    """Started by root, the jailed program is on the host neither root nor anyone else, and in no
    group."""
    with stage.start("stay") as process:
        child = pids(process)["child"]
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{child}/status").read_text().splitlines()
            if ":\t" in line
        )
        process.kill()
    uid = int(status["Uid"].split()[0])
    assert 0x7000_0000 <= uid < 0x8000_0000
    assert status["Uid"].split() == status["Gid"].split() == [str(uid)] * 4
    assert status["Groups"].strip() == ""
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert {
        int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    } == {0}


def pids(process: subprocess.Popen[str]) -> dict[str, int]:
    """From the runner's first lines; returns when the jailed program has said that it runs."""
    assert process.stdout is not None
    found: dict[str, int] = {}
    for line in process.stdout:
        word, _, number = line.strip().partition(" ")
        if number.isdigit():
            found[word] = int(number)
        if word == "uid":
            return found
    raise AssertionError("the jailed program did not come up")


@pytest.mark.promise("3.2")
def test_nothing_outlives_the_owner(stage: Stage) -> None:
    """SIGKILL to the owner: supervisor and jailed program are gone, without anyone's help."""
    with stage.start("stay") as process:
        found = pids(process)
        assert found["namespaces"] == 7
        watched = [os.pidfd_open(found["supervisor"]), os.pidfd_open(found["child"])]
        process.send_signal(signal.SIGKILL)
        try:
            assert all(gone(pidfd) for pidfd in watched)
        finally:
            for pidfd in watched:
                os.close(pidfd)


@pytest.mark.promise("3.2")
def test_nothing_outlives_the_supervisor(stage: Stage) -> None:
    """SIGKILL to the supervisor: the jailed program dies with it."""
    with stage.start("stay") as process:
        found = pids(process)
        watched = os.pidfd_open(found["child"])
        os.kill(found["supervisor"], signal.SIGKILL)
        try:
            assert gone(watched)
        finally:
            os.close(watched)
        assert "ended without a word" in process.communicate(timeout=PATIENCE_S)[0]


@pytest.mark.promise("3.2")
def test_the_lifetime_ends_it(stage: Stage) -> None:
    """At the deadline the supervisor kills the jail and says why, whatever the owner does."""
    assert stage.run("stay", lifetime_s=2)["ended"] == "9 None lifetime"
