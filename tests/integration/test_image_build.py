"""`belljar image build` with a real buildah."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.fakes.images import PYTHON, add_small_image, users_folder
from tests.machine import public_folder

from belljar.errors import PolicyError
from belljar.image import buildah, tools
from belljar.image.buildah import (
    BASES,
    BuildRequest,
    StepError,
    build_dockerfile,
    hold_base,
    remove_built,
    work_dir,
)
from belljar.image.store import Image, Store
from belljar.image.tools import NoSpaceError, first_id_of, user_namespace
from belljar.store.scratch import scratch_dir

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def small(vm_home: Path) -> str:
    """The name of a small image in the store: what doesn't ask what is in its base builds on it."""
    add_small_image(vm_home)
    return "small"


def context(directory: Path, text: str, **files: str) -> Path:
    directory.mkdir()
    for name, content in {"Dockerfile": text, **files}.items():
        (directory / name).write_text(content)
    return directory


def build(home: Path, folder: Path, name: str) -> Image:
    return build_dockerfile(home, BuildRequest(context=folder, name=name))[0]


def read(rootfs: Path, path: str) -> str:
    argv = ["unsquashfs", "-cat", str(rootfs), path]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def left(home: Path) -> list[str]:
    """What is left in the store's scratch space, and mounted below the store."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    scratch = [path.name for path in (home / "tmp").glob("*")]
    return scratch + [line for line in mounts if str(home) in line]


FACTS = """
ARG BASE=nothing
FROM ${BASE} AS one
USER root
ARG WORD
RUN id -u > /id; ls -nd /sys/kernel > /owner; cat /proc/net/dev > /net; echo $WORD > /word
RUN ls -d /root/.ssh /var/lib/belljar /home/*/.ssh > /seen 2>&1; cat /proc/1/comm > /first; grep CapEff /proc/self/status > /cap
FROM one
COPY hello /hello
COPY --from=one /word /copied
WORKDIR /work
ENV NAME=value
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["true"]
"""


@pytest.mark.promise("1.8")
def test_a_dockerfile_becomes_an_image(home: Path, small: str, tmp_path: Path) -> None:
    """Its steps have no network and nothing of this host; the same recipe is not built again."""
    folder, args = context(tmp_path / "c", FACTS, hello="hi\n"), {"BASE": small, "WORD": "word"}
    request, lines = BuildRequest(context=folder, name="tools:1", args=args), list[str]()
    made, is_new = build_dockerfile(home, request, report=lines.append)
    assert is_new
    names = ("hello", "copied", "id", "owner", "net", "first", "cap")
    seen = {name: read(made.rootfs, name) for name in names}
    assert (seen["hello"], seen["copied"], seen["id"]) == ("hi\n", "word\n", "0\n")
    assert seen["owner"].split()[2] == "65534"  # this host's root is nobody there
    assert [line.split(":")[0].strip() for line in seen["net"].splitlines()[2:]] == ["lo"]
    assert "systemd" not in seen["first"]
    assert not int(seen["cap"].split()[1], 16) & (1 << 21)  # CAP_SYS_ADMIN
    assert (made.workdir, made.entrypoint, made.cmd) == ("/work", ("/bin/sh", "-c"), ("true",))
    assert (made.env["NAME"], made.built["network"]) == ("value", False)
    assert made.built["bases"] == {small: f"sha256:{Store(home).find(small).digest}"}
    assert any("STEP 1/" in line for line in lines)
    assert build_dockerfile(home, request) == (made, False)
    lines.clear()
    (folder / "hello").write_text("changed\n")
    changed, _ = build_dockerfile(home, request, report=lines.append)
    assert read(changed.rootfs, "hello") == "changed\n"
    assert not [line for line in lines if "loading" in line]  # the base that is loaded is used
    assert not left(home)


LEADING_OUT = """
FROM small AS one
USER root
RUN ln -s / /out
FROM small
USER root
RUN --mount=type=bind,from=one,source=/out,target=/m,rw find /m{folder} /m/home /m/root >> /seen 2>&1; \\
    cat /m{folder}/secret >> /seen 2>&1; echo changed > /m{folder}/secret; ls /m /m/etc >> /seen; \\
    for place in /m /m/etc /m/run /m/dev /m/bases/*; do \\
        if (echo > $place/kept); then echo wrote $place; fi; done >> /kept 2>&1
RUN --mount=type=cache,id=../../../../../../../../../..{folder},target=/m ls /m >> /seen; echo x > /m/secret
"""


@pytest.mark.promise("1.8")
def test_a_mount_that_leads_out_leads_to_nothing(home: Path, small: str, tmp_path: Path) -> None:
    """No file of this host is shown; the root of a build, which later tools see, is read-only."""
    with tempfile.TemporaryDirectory(dir=public_folder()) as folder:
        Path(folder).chmod(0o777)
        secret = Path(folder, "secret")
        secret.write_text("the host's word")
        secret.chmod(0o666)
        recipe = LEADING_OUT.format(folder=folder)
        made = build(home, context(tmp_path / "c", recipe), "out:1")
        seen, kept = read(made.rootfs, "seen"), read(made.rootfs, "kept")
        assert "the host's word" not in seen
        assert "hosts" in seen
        assert not {"shadow", "hostname", "machine-id", "secret"} & set(seen.split())
        assert secret.read_text() == "the host's word"
        assert kept.count("Read-only file system") >= 5
        assert "wrote" not in kept
        assert made.origins == ()


@pytest.mark.promise("1.8")
def test_a_step_that_fails_is_one_error(home: Path, small: str, tmp_path: Path) -> None:
    """Its last output is quoted, escaped; a hint says what it lacked; nothing is left."""
    before = [image.digest for image in Store(home).list()]
    text = f"FROM {small}\nRUN printf 'trouble \\033[31mhere\\n'; exit 7\n"
    with pytest.raises(PolicyError) as caught:
        build(home, context(tmp_path / "c", text), "broken")
    assert "trouble \\x1b[31mhere" in caught.value.what
    assert "--network" in caught.value.hint
    with pytest.raises(StepError) as lacking:
        build(home, context(tmp_path / "d", f"FROM {small}\nRUN echo x > /in-root\n"), "broken")
    assert "USER root" in lacking.value.hint
    assert not lacking.value.wants_network
    assert [image.digest for image in Store(home).list()] == before
    assert not left(home)


@pytest.mark.promise("1.8")
def test_a_build_that_is_killed_leaves_nothing(home: Path, small: str, tmp_path: Path) -> None:
    """Its steps end with it; what is left is gone with the next build."""
    marker = f"sleep 98{os.getpid()}"
    folder = context(tmp_path / "c", f"FROM {small}\nRUN echo begun; {marker}\n")
    command = [sys.executable, "-m", "belljar", "image", "build", "-t", "killed", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("begun") for line in process.stderr)
        process.kill()
    give_up = time.monotonic() + 30
    while any(marker.encode() in _cmdline(path) for path in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < give_up, "a step outlived its build"
        time.sleep(0.05)
    assert build(
        home, context(tmp_path / "d", f"FROM {small}\nENV X={tmp_path.name}\n"), "after"
    ).names
    assert not left(home)


def _cmdline(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


USERS_BUILD = """
import sys
from pathlib import Path
from belljar.image.buildah import BuildRequest, build_dockerfile
made, _ = build_dockerfile(Path(sys.argv[1]), BuildRequest(context=Path(sys.argv[2]), name="out:1"))
assert made.built["network"] is False
print(made.rootfs)
"""


def copy_small(home: Path, small: str, target: Path) -> None:
    digest = Store(home).find(small).digest
    shutil.copytree(home / "images" / digest, target / "images" / digest)
    shutil.copy2(home / "image-names.json", target)


@pytest.mark.promise("1.8")
@pytest.mark.root
def test_a_step_reaches_nothing_of_the_user_who_builds(
    home: Path, small: str, ordinary_user: tuple[int, int]
) -> None:
    """Also where the namespace's root is the user; nothing is left of the ids' files."""
    with users_folder(*ordinary_user, "dockerfile") as folder:
        own, store = folder.path / "own", folder.path / "store"
        own.mkdir()
        (own / "secret").write_text("the user's word")
        text = LEADING_OUT.format(folder=own) + "RUN chown 1000:1000 /seen; mkdir -m 0 /shut\n"
        context(folder.path / "c", text)
        copy_small(home, small, store)
        folder.own()
        seen = read(Path(folder.run(USERS_BUILD, store, folder.path / "c")), "seen")
        assert not list((store / "tmp").glob("*"))
        assert "the user's word" not in seen
        assert "hosts" in seen
        assert (own / "secret").read_text() == "the user's word"


MAKES_FILES = r"""
import os, shutil, socket, struct


def put(path, mode=0o644, uid=0, gid=0):
    with open(path, "wb") as file:
        file.write(b"x")
    os.chown(path, uid, gid)
    os.chmod(path, mode)


put("/suid", 0o6755)
os.link("/suid", "/again")
put("/capable", 0o755)
os.setxattr("/capable", "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
os.mkfifo("/fifo")
os.mkdir("/setgid")
os.chmod("/setgid", 0o2775)
os.symlink("../nowhere", "/dangling")
os.chown("/dangling", 12, 34, follow_symlinks=False)
os.makedirs("/" + "/".join(["long" * 60] * 4))
put('/odd name\n"q" \\', 0o640, 1000, 4000)
put(b"/bad\xff")
put("/old")
os.utime("/old", (-5, -5))
put("/future")
os.utime("/future", (7e9, 7e9))
shutil.rmtree("/etc/alternatives")
os.mkdir("/etc/alternatives")
socket.socket(socket.AF_UNIX).bind("/socket")
open("/sparse", "wb").truncate(5 << 20)
os.mkdir("/shut")
put("/shut/in", 0)
os.chmod("/shut", 0)
os.chmod("/", 0o700)
os.chown("/", 5, 5)
"""


@pytest.mark.root
def test_the_result_is_the_tree_that_the_steps_made(home: Path, tmp_path: Path) -> None:
    """But sockets, set-user-ID bits and capabilities; work directory and volumes are made."""
    add_small_image(home, "python", more=PYTHON)
    text = "FROM python\nUSER root\nCOPY make.py /\nRUN python3 /make.py\nWORKDIR /place/dir\n"
    text += 'VOLUME ["/with/a space"]\nUSER user\n'
    folder = context(tmp_path / "c", text, **{"make.py": MAKES_FILES})
    made = build(home, folder, "tree:1")
    assert (made.user, made.workdir, made.volumes) == ("user", "/place/dir", ("/with/a space",))
    tree = tmp_path / "tree"
    subprocess.run(["unsquashfs", "-q", "-n", "-d", tree, made.rootfs], check=True)

    def facts(name: str | bytes) -> tuple[str, int, int]:
        found = os.lstat(os.path.join(os.fsencode(tree), os.fsencode(name)))  # noqa: PTH118
        return stat.filemode(found.st_mode), found.st_uid, found.st_gid

    assert facts(".") == ("drwxr-xr-x", 0, 0)
    assert facts("suid") == facts("again") == ("-rwxr-xr-x", 0, 0)
    assert (tree / "suid").stat().st_ino == (tree / "again").stat().st_ino
    assert facts("fifo")[0] == "prw-r--r--"
    assert facts("setgid")[0] == "drwxrwsr-x"
    assert facts("dangling") == ("lrwxrwxrwx", 12, 34)
    assert (tree / "dangling").readlink() == Path("../nowhere")
    assert facts('odd name\n"q" \\') == ("-rw-r-----", 1000, 4000)
    assert facts(b"bad\xff") == ("-rw-r--r--", 0, 0)
    assert facts("/".join(["long" * 60] * 4)) == ("drwxr-xr-x", 0, 0)
    assert [(tree / name).stat().st_mtime for name in ("old", "future")] == [0, 0xFFFF_FFFF]
    assert (tree / "sparse").stat().st_size == 5 << 20
    assert facts("shut")[0] == "d---------"
    assert facts("shut/in")[0] == "----------"
    assert not list((tree / "etc/alternatives").iterdir())
    assert facts("place/dir") == facts("with/a space") == ("drwxr-xr-x", 0, 0)
    assert not os.path.lexists(tree / "socket")
    assert os.listxattr(tree / "capable") == []


CHANGES_BASE = r"""
for file in $(find /bases -type f -size +0 | head -n 20) /bases/*/new; do
  echo changed > $file; rm -f $file; chmod 777 $file; chown 5 $file
done
mkdir /tmp/m /tmp/upper /tmp/inner
for options in remount,rw remount,bind,rw; do mount -o $options /bases/*; done
umount /bases/*; umount -l /bases/*; umount -l /bases
mount --rbind /bases /tmp/m; mount -o remount,bind,rw /tmp/m/*; echo changed > $(echo /tmp/m/*)/new
mount -t overlay -o lowerdir=/tmp/inner,upperdir=$(echo /bases/*),workdir=/tmp/upper,userxattr o /tmp/inner
nsenter --mount=/proc/1/ns/mnt mount -o remount,bind,rw /bases/*
unshare --user --map-root-user --mount sh -c 'mount -o remount,bind,rw /bases/*; echo changed > $(echo /bases/*)/new'
umount -l /proc; umount -l /proc; umount -l /proc
for pid in /proc/[0-9]*; do echo changed > $(echo $pid/root/bases/*)/new; done
id -u; touch /tmp/mine
"""


@pytest.mark.promise("1.8")
@pytest.mark.root
def test_the_root_of_a_build_changes_no_kept_base(home: Path, small: str, tmp_path: Path) -> None:
    """Whatever a step tries that became root of its build's namespace."""
    first_uid, base = first_id_of(home), home / BASES / Store(home).find(small).digest
    with (
        hold_base(home, Store(home).find(small), first_uid, print),
        scratch_dir(home) as scratch,
        work_dir(home, scratch, first_uid) as work,
        user_namespace(home, work, first_uid=first_uid, shown=[base], has_network=True) as inside,
    ):
        before = _state(base)
        done = inside.run("/bin/sh", "-c", CHANGES_BASE)
        assert (work / "mine").stat().st_uid == first_uid, done
        assert _state(base) == before


@pytest.mark.promise("1.8")
@pytest.mark.root
def test_what_filled_the_disk_is_removed_from_the_full_disk(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's builds are removed in a namespace, which is not stopped as their steps are."""
    first_uid = first_id_of(home)
    with (
        scratch_dir(home) as scratch,
        work_dir(home, scratch, first_uid) as work,
        user_namespace(home, scratch, first_uid=first_uid) as inside,
        monkeypatch.context() as patched,
    ):
        os.chown(scratch, first_uid, first_uid)
        patched.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=0))
        patched.setattr(tools, "_POLL_S", 0.001)
        with pytest.raises(NoSpaceError):
            inside.run("sleep", "10")
        patched.setattr(buildah, "user_namespace", lambda *_, **__: nullcontext(inside))
        patched.setattr(os, "geteuid", lambda: 1000)
        remove_built(home, work, first_uid)
        assert not work.exists()


def _state(directory: Path) -> bytes:
    argv = ["tar", "--format=gnu", "--sort=name", "-C", str(directory), "-c", "."]
    return hashlib.sha256(subprocess.run(argv, capture_output=True, check=True).stdout).digest()
