"""A hostile program in the VMM's place, in the real jail, as root's and as an ordinary user's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.compiled import compile_static
from tests.integration.as_user import own
from tests.integration.processes import capabilities, status_of
from tests.machine import PATIENCE_S, public_folder
from tests.security.stages import UserStage, all_end, program_of, ready, said_by

HERE = Path(__file__).parent
# Root in the container that tests run in may lack these; elsewhere the control shows them to work.
UNSURE_CONTROLS = {
    "socket_vsock", "use_io_uring", "use_userfaultfd", "use_bpf", "use_keyring", "trace_process", "clone3_user_namespace", "list_mounts", "call_of_tomorrow",
}  # fmt: skip
# An ordinary user can't do these outside either: their proof is root's control.
ROOT_ONLY = {
    "remount_image", "remount_root", "mount_tmpfs", "chroot_away", "become_root", "become_root_group", "join_group", "gain_capabilities", "hold_capability",
    "new_network_namespace", "make_device", "use_bpf", "see_any_process", "see_host_process", "use_userfaultfd", "dump_core",
}  # fmt: skip


class Stage(UserStage):
    """With the probe as a jail's root, and an image."""

    @property
    def image(self) -> Path:
        return self.directory / "image"

    def start(self, mode: str, lifetime_s: float = 60) -> subprocess.Popen[str]:
        words = (self.directory / "jail_runner.py", self.directory, lifetime_s, "vmm", mode)
        return self.start_runner(*map(str, words))

    def run(self, mode: str, lifetime_s: float = 60) -> dict[str, str]:
        """The runner to its end; what it said, by the first word."""
        return said_by(self.start(mode, lifetime_s))


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hostile program, compiled as static as the VMM's jail needs it."""
    return compile_static(HERE / "jail_probe.c", tmp_path_factory.mktemp("probe") / "probe")


@pytest.fixture(params=("root", "user"))
def stage(request: pytest.FixtureRequest, probe: Path, readable_package: Path) -> Iterator[Stage]:
    """As root and as an ordinary user (only that one, when the tests are run by one)."""
    is_root = os.geteuid() == 0
    if request.param == "root" and not is_root:
        pytest.skip("needs root")
    directory = Path(tempfile.mkdtemp(prefix="jail-", dir=public_folder()))
    make_stage(directory, probe)
    shutil.copy(HERE / "jail_runner.py", directory)
    ids: tuple[int, int] | None = None
    if request.param == "user" and is_root:
        ids = request.getfixturevalue("ordinary_user")
        own(directory, *ids)
    argv, environment = program_of(ids, readable_package)
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


@pytest.mark.promise("2.1", "8.2")
def test_every_attack_fails_in_the_jail(stage: Stage) -> None:
    """Nothing is written, remounted, seen, reached, gained; the image is what it was."""
    said = stage.run("attack")
    attacks = {
        name: int(errno)
        for name, errno in said.items()
        if name not in {"uid", "ended", "diagnosis", "owners_key"}
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
    """The control: without the jail the same program succeeds."""
    program, image = str(stage.directory / "root" / "probe"), str(stage.image)
    words = (program, "1", "control", str(os.getppid()), image)
    prefix = stage.argv[:-1] if len(stage.argv) > 1 else ()
    result = subprocess.run(
        (*prefix, *words), env={"A": "b"}, capture_output=True, text=True, check=True, cwd="/"
    )
    attacks = {line.split()[0]: int(line.split()[1]) for line in result.stdout.splitlines()}
    Path("/tmp/.probe-device").unlink(missing_ok=True)
    excused = UNSURE_CONTROLS | {"extra_descriptor", "uid"}
    excused |= ROOT_ONLY if stage.user == "user" else set()
    assert {name for name, errno in attacks.items() if errno} - excused == set()


@pytest.mark.promise("3.2")
@pytest.mark.root
@pytest.mark.parametrize("stage", ["root"], indirect=True)
def test_root_gives_each_jail_a_host_uid_of_its_own(stage: Stage) -> None:
    """Neither root nor anyone else on the host, and in no group."""
    with stage.start("stay") as process:
        status = status_of(ready(process, "uid")["child"])
        process.kill()
    uid = int(status["Uid"].split()[0])
    assert 0x7000_0000 <= uid < 0x8000_0000
    assert status["Uid"].split() == status["Gid"].split() == [str(uid)] * 4
    assert (status["Groups"], status["NoNewPrivs"], status["Seccomp"]) == ("", "1", "2")
    assert capabilities(status) == {0}


@pytest.mark.promise("3.2")
@pytest.mark.parametrize("victim", ["owner", "supervisor"])
def test_nothing_outlives_any_of_them(stage: Stage, victim: str) -> None:
    """SIGKILL to either: the jailed program is gone, without anyone's help."""
    with stage.start("stay") as process:
        found = ready(process, "uid")
        assert found["namespaces"] == 7
        watched = ("supervisor", "child") if victim == "owner" else ("child",)
        with all_end(*(found[name] for name in watched)):
            os.kill(process.pid if victim == "owner" else found["supervisor"], signal.SIGKILL)
        if victim == "supervisor":
            assert "ended without a word" in process.communicate(timeout=PATIENCE_S)[0]


@pytest.mark.promise("3.2")
@pytest.mark.parametrize("stage", ["user"], indirect=True)
def test_the_lifetime_ends_it(stage: Stage) -> None:
    """At the deadline the supervisor kills the jail and says why, whatever the owner does."""
    assert stage.run("stay", lifetime_s=1)["ended"] == "9 None lifetime"
