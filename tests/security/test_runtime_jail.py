"""The jail of an OCI runtime, whose program keeps capabilities."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.compiled import compile_static
from tests.integration.processes import capabilities, status_of
from tests.machine import PATIENCE_S, public_folder
from tests.security.jail_runner import COUNT, STAGE_ID, TREE_ID
from tests.security.stages import UserStage, all_end, program_of, ready, said_by

from belljar.isolation.oci.container import BUSY_SEALS
from belljar.package import program_path

HERE = Path(__file__).parent
RUNC = ("/runc", "--root", "/c/state", "run", "--detach", "--bundle", "/b", "one")
pytestmark = pytest.mark.root

EPERM, ENOENT, EACCES, EXDEV, EINVAL = 1, 2, 13, 18, 22
ENOSPC, EROFS, ENOSYS, ELOOP, ENOKEY = 28, 30, 38, 40, 126
DONE = 0
FOUND = {
    # itself
    "ids": "0:0", "groups": "0", "descriptors": "0", "environment": "PATH=/usr/bin", "session_key": ENOKEY,
    # pid 1 is deaf to what is in its namespace: the signal is sent, and nothing happens
    "kill_init": DONE,
    # the filter
    "module": EPERM, "bpf": EPERM, "perf": EPERM, "userfaultfd": EPERM, "io_uring": ENOSYS,
    "core_limit": EPERM, "core_limit_newly": EPERM, "core_limit_read": DONE, "other_limit": DONE,
    # the host, and what is mounted
    "host_file": ENOENT, "host_name": DONE, "core_pattern": EACCES, "fresh_proc": EPERM,
    "dev_null_write": DONE, "dev_null_chmod": EROFS, "sys_read_only": EROFS, "dev_full": f"64:{ENOSPC}",
    "tree_file": "1:1:100644", "tree_setuid": "1:1:104755", "tree_write": EROFS, "tree_create": EROFS,
    "new_group": EROFS, "root_remount": EPERM, "bundle_remount": EPERM, "sys_remount": EPERM, "root_write": EROFS,
    "tree_remount": EPERM, "tree_remount_write": EROFS, "tree_unmount": EINVAL,
    # the overlay does what a root file system must
    "new_root": "1:1:40755", "upper_root": "1:1:40755", "new_file": "1:1:100644", "new_delete": DONE, "new_deleted": ENOENT, "new_recreate": DONE,
    "new_rename_directory": EXDEV, "new_empty_directory": DONE, "new_delete_directory": DONE, "whiteout_in_upper": DONE, "new_directory_again": DONE,
    "new_directory_is_empty": ENOENT, "new_chown": DONE, "new_chowned": "1001:1001:100755", "new_chmod": DONE, "new_setuid": "1001:1001:104755",
    "new_device": EPERM,
}  # fmt: skip
MOUNTED = {
    "/", "/proc", "/sys", "/sys/fs/cgroup", "/dev", *(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")), "/tree", "/c", "/c/proc",
    "/b", "/new",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stage(UserStage):
    """With a jail's root, a tree and a bundle; who is who on the host."""

    stage_uid: int
    workload_uid: int

    def start(
        self, *program: str, lifetime_s: float = 60, altered: str = "plain"
    ) -> subprocess.Popen[str]:
        words = (self.directory / "jail_runner.py", self.directory, lifetime_s, altered)
        return self.start_runner(*map(str, words), *program, stdin=subprocess.PIPE)

    def run(self, *program: str, word: str = "", **options: Any) -> dict[str, str]:  # noqa: ANN401 - as `start` takes them
        """The runner to its end, with a word to the program; what it said, by the first word."""
        for _ in range(5):
            said = said_by(self.start(*program, **options), word)
            words = said.get("diagnosis", "").lower()
            if not any(busy in words for busy in BUSY_SEALS):  # else again, as a cell's start is
                break
        return said


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_static(HERE / "runtime_probe.c", tmp_path_factory.mktemp("runtime") / "probe")


@pytest.fixture(params=("root", "user"), scope="module")
def stage(request: pytest.FixtureRequest, probe: Path, readable_package: Path) -> Iterator[Stage]:
    """Once for root, once for an ordinary user with subordinate ids."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir=public_folder()) as folder:
        directory, ids = Path(folder), None
        make_stage(directory, probe)
        stage_uid, workload_uid, tree_id = STAGE_ID, STAGE_ID + 1, TREE_ID
        if request.param == "user":
            ids = request.getfixturevalue("ordinary_user")
            stage_uid, workload_uid = ids[0], subordinate_id(ids[0])
            tree_id = workload_uid
            give(directory, *ids)
        else:
            give(directory / "out", STAGE_ID, STAGE_ID)
        give(directory / "tree", tree_id, tree_id)
        argv, environment = program_of(ids, readable_package)
        yield Stage(
            user=request.param,
            directory=directory,
            argv=argv,
            environment=environment,
            stage_uid=stage_uid,
            workload_uid=workload_uid,
        )


def subordinate_id(uid: int) -> int:
    """The user's first, which `useradd` gave him (the same for groups)."""
    name = pwd.getpwuid(uid).pw_name
    firsts = {
        int(line.split(":")[1])
        for file in ("/etc/subuid", "/etc/subgid")
        for line in Path(file).read_text().splitlines()
        if line.split(":")[0] == name
    }
    if len(firsts) != 1:
        pytest.skip("useradd gives no subordinate ids on this system")
    return firsts.pop()


def make_stage(directory: Path, probe: Path) -> None:
    """A root with the probe and runc, an image with only the probe, and its bundle."""
    for name in ("proc", "sys", "dev", "tree", "c", "b", "new", "out"):
        (directory / "root" / name).mkdir(parents=True)
    for name in ("dir", "proc", "dev", "sys"):
        (directory / "tree" / name).mkdir(parents=True)
    (directory / "bundle").mkdir()
    (directory / "out").mkdir()
    for target in ("root/probe", "tree/probe", "tree/setuid"):
        shutil.copy(probe, directory / target)
    (directory / "tree" / "setuid").chmod(0o4755)
    (directory / "tree" / "file").write_text("of the image")
    (directory / "tree" / "dir" / "inner").touch()
    (directory / "bundle" / "config.json").write_text(json.dumps(bundle("leave")))
    shutil.copy(HERE / "jail_runner.py", directory)
    directory.chmod(0o755)
    copy_runc(directory / "root")


def copy_runc(root: Path) -> None:
    runc = shutil.which("runc", path="/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin")
    if runc is None:
        pytest.skip("runc is not installed")
    shutil.copy(runc, root / "runc")
    listed = subprocess.run(["ldd", runc], capture_output=True, text=True, check=False).stdout
    for library in (
        word for line in listed.splitlines() for word in line.split() if word.startswith("/")
    ):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)


def mount_of(target: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": options}


def bundle(mode: str) -> dict[str, Any]:
    """The least that runc runs, in a user namespace below the jail's."""
    mapping = [{"containerID": 0, "hostID": 1, "size": COUNT}]
    namespaces = [
        {"type": name} for name in ("pid", "network", "ipc", "uts", "mount", "cgroup", "user")
    ]
    safe = ["nosuid", "noexec", "nodev"]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["/probe", mode],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "/new"},
        "mounts": [
            mount_of("/proc", "proc", "proc", *safe),
            mount_of("/dev", "tmpfs", "tmpfs", "nosuid", "size=64k"),
            mount_of("/sys", "sysfs", "sysfs", *safe, "ro"),
        ],
        "linux": {"uidMappings": mapping, "gidMappings": mapping, "namespaces": namespaces},
    }


def give(directory: Path, uid: int, gid: int) -> None:
    """The directory and all in it; modes stay as they are."""
    for path in (directory, *directory.rglob("*")):
        mode = path.stat().st_mode & 0o7777
        os.chown(path, uid, gid)
        path.chmod(mode)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def looked(stage: Stage, **options: str) -> dict[str, str]:
    """What the program says of itself, which is as it must be."""
    said = stage.run("/probe", "detach", "look", **options)
    found = {name: said.get(name) for name in FOUND}
    assert found == {name: str(value) for name, value in FOUND.items()}
    assert set(said["mounts"].strip(",").split(",")) == MOUNTED
    return said


@pytest.mark.promise("2.1")
def test_what_a_runtime_can_do(stage: Stage) -> None:
    """With all its capabilities."""
    said = looked(stage)
    assert int(said["highest_process"]) < 10
    assert said["owners_key"] == "True"
    # Root's bundle belongs to nobody in the jail; an ordinary user's to his own stage, which only
    # the mount keeps off.
    assert int(said["bundle_write"]) == (EACCES if stage.user == "root" else EROFS)
    written_kib, errno = map(int, said["new_full"].split(":"))
    assert (3000 < written_kib <= 4096, errno) == (True, ENOSPC)
    inodes, errno = map(int, said["new_inodes"].split(":"))
    assert (150 < inodes < 200, errno) == (True, ENOSPC)
    assert said["ended"] == "None 0 itself"
    assert (stage.directory / "tree" / "file").read_text() == "of the image"
    assert sorted(path.name for path in (stage.directory / "tree").iterdir()) == sorted(
        ("dir", "proc", "dev", "sys", "probe", "setuid", "file")
    )


def test_a_network_gives_a_runtime_nothing_else(stage: Stage) -> None:
    """With a network the program sees, may and can't do what it does without."""
    looked(stage, altered="network")
    with stage.start("/probe", "detach", "stay", altered="network") as process:
        assert ready(process, "ready")["namespaces"] == 7
        process.kill()


def test_a_link_that_never_comes(stage: Stage) -> None:
    """The lifetime ends the wait, and so does the end of who would say that it is there."""
    said = stage.run("/probe", "detach", "stay", lifetime_s=1.0, altered="unconnected")
    assert said["ended"] == "9 None lifetime"
    assert "child" not in said
    said = stage.run("/probe", "detach", "stay", altered="forsaken")
    assert (
        "step 25, network, failed: Broken pipe: nobody said that the link is there" in said["error"]
    )
    assert said["ended"].startswith("None 125")
    assert "child" not in said


def test_a_program_that_writes_for_the_store(stage: Stage) -> None:
    """Files for mapped ids alone, no device, no link followed, nowhere else."""
    said = stage.run("/probe", "write", altered="writer")
    allowed = {name for name in ("write", "chown", "chmod", "link") if said[name] == "0"}
    assert allowed == {"write", "chown", "chmod", "link"}, said
    assert {
        name: int(said[name]) for name in ("chown_unmapped", "device", "follow", "write_elsewhere")
    } == {"chown_unmapped": EINVAL, "device": EPERM, "follow": ELOOP, "write_elsewhere": EROFS}
    assert said["ended"] == "None 0 itself"
    made = (stage.directory / "out" / "file").stat()
    assert made.st_uid == stage.workload_uid + 999
    assert made.st_mode & 0o7777 == 0o4755


@pytest.mark.promise("2.1")
def test_runc_runs_a_container_in_it(stage: Stage) -> None:
    """On the host it is who was promised; its end is what is told."""
    with stage.start(*RUNC) as process:
        found = ready(process, "ready")
        init, container = status_of(found["child"]), status_of(children_of(found["child"])[0])
        output = process.communicate("go\n", timeout=PATIENCE_S)[0]
    assert init["Uid"].split() == [str(stage.stage_uid)] * 4
    assert init["Groups"] == container["Groups"] == ""
    assert capabilities(init) == {0}
    assert {(one["NoNewPrivs"], one["Seccomp"]) for one in (init, container)} == {("1", "2")}
    assert container["Uid"].split() == [str(stage.workload_uid)] * 4
    assert found["namespaces"] == 7
    assert "ended None 7 itself" in output


def test_a_race_that_an_image_wins_against_runc_gives_it_nothing(stage: Stage) -> None:
    """CVE-2025-31133, -52565 and -52881 end in a write to a file of procfs that runc was led to."""
    target = "/proc/sys/kernel/core_pattern"
    link, config = stage.directory / "tree" / "dev" / "null", stage.directory / "bundle/config.json"
    plain = config.read_text()
    made = bundle(target)
    made["mounts"][1] = mount_of("/dev", "bind", "/new/dev", "rbind")
    made["linux"]["maskedPaths"] = ["/proc/keys"]
    link.symlink_to(target)
    try:
        config.write_text(json.dumps(made))
        said = stage.run(*RUNC, altered="brief")
    finally:
        link.unlink()
        config.write_text(plain)
    assert said.get("redirected") == "1", said
    assert int(said["written"]) == EACCES
    assert int(said["remounted"]) == EPERM


@pytest.mark.parametrize("victim", ["runner", "supervisor", "child"])
def test_nothing_outlives_any_of_them(stage: Stage, victim: str) -> None:
    """SIGKILL to owner, supervisor or pid 1: the container is gone, and so are they."""
    with stage.start(*RUNC) as process:
        found = ready(process, "ready")
        container = children_of(found["child"])[0]
        watched = [found["child"], container]
        watched += [found["supervisor"]] if victim == "runner" else []
        with all_end(*watched):
            os.kill({**found, "runner": process.pid}[victim], signal.SIGKILL)
        process.kill()


def base(root: str, lifeline: int, status: int) -> tuple[str, ...]:
    fds = ("--lifeline", str(lifeline), "--status", str(status))
    return ("--cell", "c-1", "--root", root, *fds, "--owner", str(os.getpid()))


MAPS = ("--uid-map", "0", "5000", "1", "--gid-map", "0", "5000", "1")


@pytest.mark.promise("2.1")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--uid-map", "0", "5000", "1", "--uid-map", "1", "0", "1", "--gid-map", "0", "5", "1"),
            "host's id 0",
        ),
        (("--uid-map", "0", "4294967290", "9", "--gid-map", "0", "5", "1"), "an id map's line"),
        ((*MAPS, "--mount-tmpfs", "/c", "0", "10", "493", "exec"), "without limits"),
        ((*MAPS, "--mount-overlay", "/new", "/a,x", "/b", "/c"), "/a,x"),
        (("--uid", "5", "5", "--gid", "5", "5", "--keep-capabilities"), "need --uid-map"),
        ((*MAPS, "--user-namespace", "3"), "an ordinary user's"),
        ((*MAPS, "--network", "3", "plain", "--init"), "needs --init and --keep-capabilities"),
    ],
)
def test_what_the_launcher_refuses(options: tuple[str, ...], words: str) -> None:
    """No host root inside, nothing without limits, nothing guessed."""
    command = (str(program_path("jail")), *base("/", 0, 2), *options, "--", "/x")
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env={}
    )
    assert result.returncode == 125
    assert result.stderr.startswith("failed step 1 options")
    assert words in result.stderr


def test_a_users_namespace_has_no_host_root(
    ordinary_user: tuple[int, int], readable_package: Path
) -> None:
    """Refused where an administrator has mapped the host's root into it."""
    uid, gid = ordinary_user
    who: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": [], "text": True}
    who |= {"env": {}, "cwd": "/"}
    holding = ("/usr/bin/unshare", "--user", "/bin/sh", "-c", "echo made; read word")
    pipe = subprocess.PIPE
    lifeline, ours = os.pipe()
    with subprocess.Popen(holding, stdin=pipe, stdout=pipe, **who) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "made\n"
        for file, id_ in (("uid_map", uid), ("gid_map", gid)):
            Path(f"/proc/{holder.pid}/{file}").write_text(f"0 {id_} 1\n1 0 1\n")
        namespace = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
        nested = ("--uid", "0", "1000", "--gid", "0", "1000", "--user-namespace", str(namespace))
        launcher = readable_package / "belljar/_bin" / program_path("jail").name
        command = (str(launcher), *base("/var", lifeline, 1), *nested, "--", "/x")
        said = subprocess.run(
            command,
            pass_fds=(namespace, lifeline),
            stdout=pipe,
            stdin=subprocess.DEVNULL,
            check=False,
            **who,
        )
        holder.communicate("end\n")
    for fd in (namespace, lifeline, ours):
        os.close(fd)
    assert "step 3 namespaces errno 1" in said.stdout
    assert "the host's id 0 is mapped" in said.stdout
