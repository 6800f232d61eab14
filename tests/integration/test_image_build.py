"""`belljar image build` with a real buildah."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.images import add_small_image
from tests.integration.as_user import UsersBelljar, installed_for, own
from tests.machine import Templates, public_folder

from belljar.errors import PolicyError
from belljar.image.buildah import BuildRequest, build_dockerfile
from belljar.image.store import Image, Store

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def user(
    prepared_home: Path, ordinary_user: tuple[int, int], templates: Templates
) -> Iterator[UsersBelljar]:
    """An ordinary user with a store of their own."""
    with (
        installed_for(prepared_home, *ordinary_user) as installed,
        templates.serving(installed.home, ordinary_user),
    ):
        add_small_image(installed.home)
        own(installed.home, *ordinary_user)
        yield installed


@pytest.fixture(scope="module")
def small(vm_home: Path) -> str:
    """The name of a small image in the store: what doesn't ask what is in its base builds on it."""
    add_small_image(vm_home)
    return "small"


def context(directory: Path, text: str, **files: str) -> Path:
    """A directory with a Dockerfile and other files."""
    directory.mkdir()
    (directory / "Dockerfile").write_text(text)
    for name, content in files.items():
        (directory / name).write_text(content)
    return directory


def read(image: Image, path: str) -> str:
    """A file of an image."""
    done = subprocess.run(
        ["unsquashfs", "-cat", image.rootfs, path], capture_output=True, text=True, check=True
    )
    return done.stdout


def left(home: Path) -> list[str]:
    """What is left in the store's scratch space, and mounted below the store."""
    mounts = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(home) in line
    ]
    return [path.name for path in (home / "tmp").glob("*")] + mounts


FACTS = """
ARG BASE=nothing
FROM ${BASE} AS one
USER root
ARG WORD
RUN id -u > /id; stat -c %u /sys/kernel > /owner; cat /proc/net/dev > /net; echo $WORD > /word
RUN ls -d /root/.ssh /var/lib/belljar /home/*/.ssh > /seen 2>&1; cat /proc/1/comm > /first; grep CapEff /proc/self/status > /cap
FROM one
COPY hello /hello
COPY --from=one /word /copied
WORKDIR /work
ENV NAME=value
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["true"]
"""


def test_a_dockerfile_becomes_an_image(home: Path, tmp_path: Path) -> None:
    """A Dockerfile with an argument, stages and copies gives an image with its provenance; its
    steps have no network, no privilege over this host and nothing of it in view; nothing but the
    image is left; the same recipe is not built again.
    """
    request = BuildRequest(
        context=context(tmp_path / "c", FACTS, hello="hi\n"),
        name="tools:1",
        args={"BASE": "default", "WORD": "word"},
    )
    lines: list[str] = []
    made, is_new = build_dockerfile(home, request, report=lines.append)
    assert is_new
    assert (read(made, "hello"), read(made, "copied"), read(made, "id")) == (
        "hi\n",
        "word\n",
        "0\n",
    )
    assert read(made, "owner") == "65534\n"  # this host's root is nobody there
    assert [line.split(":")[0].strip() for line in read(made, "net").splitlines()[2:]] == ["lo"]
    assert "systemd" not in read(made, "first")
    assert not int(read(made, "cap").split()[1], 16) & (1 << 21)  # CAP_SYS_ADMIN
    assert (made.workdir, made.entrypoint, made.cmd) == ("/work", ("/bin/sh", "-c"), ("true",))
    assert made.env["NAME"] == "value"
    assert made.built["network"] is False
    assert made.built["bases"] == {"default": f"sha256:{Store(home).find('default').digest}"}
    assert any("STEP 1/" in line for line in lines)
    assert not left(home)
    again, is_new = build_dockerfile(home, request)
    assert (again.digest, is_new) == (made.digest, False)


DOCUMENTS = """
FROM small
USER root
ARG WORD=argument
RUN <<EOF
set -e
echo $WORD > /script
# kept
false || echo "two lines" >> /script
EOF
RUN <<-'EOF'
	#!/usr/bin/bash
	echo "$BASH" > /program
	EOF
SHELL ["/bin/bash", "-ec"]
RUN cat <<A > /a; shopt -q login_shell || echo $BASH >> /a
$WORD \\\\
A
COPY --chmod=0700 <<'ONE' <<TWO hello /files/
$literal
ONE
two
TWO
COPY . /all/
"""


def test_here_documents_are_what_docker_makes_of_them(
    home: Path, small: str, tmp_path: Path
) -> None:
    """Scripts of the shell, programs, files; the context of other instructions has nothing of
    them."""
    made, _ = build_dockerfile(
        home,
        BuildRequest(context=context(tmp_path / "c", DOCUMENTS, hello="hi\n"), name="documents"),
    )
    assert read(made, "script") == "argument\ntwo lines\n"
    assert read(made, "program") == "/usr/bin/bash\n"
    assert read(made, "a") == "argument \\\n/bin/bash\n"
    assert [read(made, f"files/{name}") for name in ("ONE", "TWO", "hello")] == [
        "$literal\n",
        "two\n",
        "hi\n",
    ]
    listed = subprocess.run(
        ["unsquashfs", "-ll", made.rootfs], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[0] for line in listed.splitlines() if line.endswith("/files/TWO")] == [
        "-rwx------"
    ]
    there = {line.rpartition("/all/")[2] for line in listed.splitlines() if "/all/" in line}
    assert there == {"Dockerfile", "hello"}
    assert not left(home)


LEADING_OUT = """
FROM small AS one
USER root
RUN ln -s / /out
FROM small
USER root
RUN --mount=type=bind,from=one,source=/out,target=/m,rw find /m{folder} /m/home /m/root >> /seen 2>&1; \\
    cat /m{folder}/secret >> /seen 2>&1; echo changed > /m{folder}/secret; ls /m /m/etc >> /seen
RUN --mount=type=cache,id=../../../../../../../../../..{folder},target=/m ls /m >> /seen; echo x > /m/secret
"""


def test_a_mount_that_leads_out_leads_to_nothing(home: Path, small: str, tmp_path: Path) -> None:
    """A step's mount through a link to `/` of another stage, or with a cache's name that leads up,
    shows no file of this host."""
    with tempfile.TemporaryDirectory(dir=public_folder()) as folder:
        Path(folder).chmod(0o777)
        secret = Path(folder, "secret")
        secret.write_text("the host's word")
        secret.chmod(0o666)
        recipe = LEADING_OUT.format(folder=folder)
        made, _ = build_dockerfile(
            home, BuildRequest(context=context(tmp_path / "c", recipe), name="out:1")
        )
        seen = read(made, "seen")
        assert "the host's word" not in seen
        assert "hosts" in seen
        assert not {"shadow", "hostname", "machine-id", "secret"} & set(seen.split())
        assert secret.read_text() == "the host's word"


def test_a_step_that_fails_is_one_error(home: Path, small: str, tmp_path: Path) -> None:
    """The end of a failing step's output is quoted, escaped; the store and the scratch space are as
    they were."""
    before = [image.digest for image in Store(home).list()]
    text = f"FROM {small}\nRUN printf 'trouble \\033[31mhere\\n'; exit 7\n"
    with pytest.raises(PolicyError) as caught:
        build_dockerfile(home, BuildRequest(context=context(tmp_path / "c", text), name="broken"))
    assert "trouble \\x1b[31mhere" in caught.value.what
    assert [image.digest for image in Store(home).list()] == before
    assert not left(home)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough), signal.SIGKILL],
)
def test_a_build_that_is_killed_leaves_nothing(
    home: Path, small: str, tmp_path: Path, number: signal.Signals
) -> None:
    """However the command ends, its steps end with it; what is left on disk is gone at the latest
    with the next build."""
    marker = f"sleep 98{int(number)}"
    folder = context(tmp_path / "c", f"FROM {small}\nRUN echo begun; {marker}\n")
    command = [sys.executable, "-m", "belljar", "image", "build", "-t", "killed", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("begun") for line in process.stderr)
        process.send_signal(number)
        process.wait(60)
    _wait_until_gone(marker)
    if number == signal.SIGKILL:
        done, _ = build_dockerfile(
            home,
            BuildRequest(
                context=context(tmp_path / "d", f"FROM {small}\nENV X={tmp_path.name}\n"),
                name="after",
            ),
        )
        assert done.names
    assert not left(home)


def _wait_until_gone(marker: str) -> None:
    give_up = time.monotonic() + 30
    while any(marker.encode() in _cmdline(path) for path in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < give_up, "a step outlived its build"
        time.sleep(0.05)


def _cmdline(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


FILLS_DISK = "FROM default\nUSER root\nRUN head -c 3000M /dev/zero > /big || tail -f /dev/null\n"
"""It stays when the disk is full: one that fails at once says so itself, as a failed step."""


@pytest.mark.root
def test_a_full_disk_is_one_error(home: Path, tmp_path: Path) -> None:
    """A build that fills the disk is stopped with one error, and the disk is as free as before."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1600m,mode=755", "tmpfs", str(small)], check=True
    )
    try:
        digest = Store(home).find("default").digest
        shutil.copytree(home / "images" / digest, small / "images" / digest)
        shutil.copy2(home / "image-names.json", small)
        first = context(tmp_path / "first", "FROM default\nENV X=1\n")
        build_dockerfile(small, BuildRequest(context=first, name="first"))
        folder = context(tmp_path / "c", FILLS_DISK)
        free = shutil.disk_usage(small).free
        done = subprocess.run(
            [sys.executable, "-m", "belljar", "image", "build", "-t", "big", str(folder)],
            env={**os.environ, "BELLJAR_HOME": str(small)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3, done.stderr
        assert "no space is left" in done.stderr
        assert "Traceback" not in done.stderr
        assert shutil.disk_usage(small).free > free - (1 << 20)
        assert not left(small / "tmp")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_the_command_prints_the_image(home: Path, small: str, tmp_path: Path) -> None:
    """With --json, standard output is the image alone; progress goes to standard error."""
    folder = context(tmp_path / "c", f"FROM {small}\nENV Y={tmp_path.name}\n")
    command = [
        sys.executable,
        "-m",
        "belljar",
        "image",
        "build",
        "-t",
        "cli:1",
        "--json",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["names"] == ["cli:1"]


@pytest.mark.root
def test_an_ordinary_user_builds_too(user: UsersBelljar, tmp_path: Path) -> None:
    """With subordinate ids a user builds without root, and nothing is left of the ids' files."""
    with tempfile.TemporaryDirectory(dir=public_folder()) as folder:
        Path(folder).chmod(0o755)
        made = context(
            Path(folder) / "c",
            "FROM small\nUSER root\nRUN id -u > /id; chown 1000:1000 /id; mkdir -m 0 /shut\n",
        )
        done = user("image", "build", "-t", "mine:1", "--json", str(made))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["built"]["network"] is False
        assert not list((user.home / "tmp").glob("*"))


@pytest.mark.root
def test_a_step_reaches_nothing_of_the_user_who_builds(user: UsersBelljar) -> None:
    """Where the namespace's root is the user, a mount that leads out shows none of their files."""
    with tempfile.TemporaryDirectory(dir=public_folder()) as folder:
        Path(folder).chmod(0o755)
        own = Path(folder, "own")
        own.mkdir()
        (own / "secret").write_text("the user's word")
        for path in (own, own / "secret"):
            os.chown(path, user.uid, user.gid)
        made = context(Path(folder) / "c", LEADING_OUT.format(folder=own))
        done = user("image", "build", "-t", "out:1", "--json", str(made))
        assert done.returncode == 0, done.stderr
        image = user.home / "images" / json.loads(done.stdout)["digest"] / "rootfs.sqfs"
        seen = subprocess.run(
            ["unsquashfs", "-cat", image, "seen"], capture_output=True, text=True, check=True
        ).stdout
        assert "the user's word" not in seen
        assert "hosts" in seen
        assert (own / "secret").read_text() == "the user's word"
