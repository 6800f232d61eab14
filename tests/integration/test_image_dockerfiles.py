"""Dockerfiles that BuildKit builds, built with a real buildah and run in a cell."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.images import add_small_image

from belljar import sync
from belljar.errors import PolicyError
from belljar.image.buildah import BuildRequest, StepError, build_dockerfile
from belljar.image.kernel import debian_arch
from belljar.image.packages import build_packages
from belljar.image.store import Image, Store
from belljar.policy.load import parse_policy

pytestmark = [pytest.mark.slow]

FORMS = """# syntax=docker/dockerfile:1
# escape=`
ARG TAG=12 BASE=small EXT=a.b.c
FROM ${BASE} AS bin-{arch}
USER root
RUN echo {arch} > /arch `
 && echo two > /two
FROM not-in-the-store AS bin-other
RUN --security=insecure true
FROM --platform=$BUILDPLATFORM bin-${TARGETARCH} AS last
ARG A=1 B=2 EXT
RUN [ "$A$B" = 12 ]
ENV W=${EXT%.*} X=${NO-x} Y=${A:+y} Z=${EXT//./_} D="a `$b 'q'" E="back\\slash"
RUN echo "$W $X $Y $Z $D $E" > /env
COPY --link --chmod=u=rwX,go=rX --chown=1000:1000 src/ /srv/
COPY --parents a/./b /x/
COPY --exclude=*.pem src /no-pem
ADD --checksum=sha256:{checksum} f /f
RUN --network=none true
WORKDIR /work
RUN --mount=type=bind,target=. ls > /seen
RUN --mount=type=tmpfs,target=/mnt/t,size=10m ls -a /mnt/t > /tmpfs
RUN --mount=type=secret,id=tok,required=false,env=TOK echo "[$TOK]" > /tok
RUN --mount=type=cache,target=/c,sharing=locked,id=x,uid=1000,mode=0700 ls -ldn /c > /cache
COPY <<EOF /body
$W "q"
EOF
HEALTHCHECK --start-interval=1s --interval=5s CMD true
ENTRYPOINT []
CMD echo $A
"""
LOOK = (
    'for f in arch two env f tmpfs tok body x/b/c; do echo "$f:" $(cat /$f); done; '
    "echo seen: $(cat /seen); head -c 17 /cache; echo; ls -n /no-pem /srv /srv/sub"
)
POLICY = "belljar: 1\nrisk: low\ntier: container\nimage: forms:1\n"


def test_the_forms_of_buildkit_are_built(home: Path, tmp_path: Path) -> None:
    """Directives, arguments, platforms, variables, flags, mounts and here-documents mean in a cell
    of the image what they mean in one that BuildKit built."""
    add_small_image(home)
    for name, mode in {
        "f": 0o644,
        "src/run": 0o711,
        "src/sub/t": 0o600,
        "src/x.pem": 0o600,
    }.items():
        path = tmp_path / "c" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")
        path.chmod(mode)
    (tmp_path / "c/a/b").mkdir(parents=True)
    (tmp_path / "c/a/b/c").write_text("parents")
    checksum = hashlib.sha256(b"content").hexdigest()
    text = FORMS.replace("{arch}", debian_arch()).replace("{checksum}", checksum)
    (tmp_path / "c/Dockerfile").write_text(text)
    made, _ = build_dockerfile(home, BuildRequest(context=tmp_path / "c", name="forms:1"))
    assert made.healthcheck is not None
    assert (made.healthcheck.start_interval_ns, made.healthcheck.interval_ns) == (10**9, 5 * 10**9)
    assert (made.cmd, made.workdir) == (("/bin/sh", "-c", "echo $A"), "/work")
    (tmp_path / "policy.yaml").write_text(POLICY)
    command = ["exec", str(tmp_path / "policy.yaml"), "--", "sh", "-c", LOOK]
    done = subprocess.run(
        [sys.executable, "-m", "belljar", *command],
        env={**os.environ, "BELLJAR_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:10] == [
        f"arch: {debian_arch()}",
        "two: two",
        "env: a.b x y a_b_c a $b 'q' back\\slash",
        "f: content",
        "tmpfs: . ..",
        "tok: []",
        'body: a.b "q"',
        "x/b/c: parents",
        "seen: Dockerfile a f src",
        "drwx------ 2 1000",
    ]
    listed = {words[-1]: words for line in lines[10:] if len(words := line.split()) > 8}
    by_place = "\n".join(lines[10:]).split("/srv:")
    assert {"run", "sub"} == {line.split()[-1] for line in by_place[0].splitlines()[2:] if line}
    assert [listed[name][:1] + listed[name][2:4] for name in ("run", "t", "x.pem")] == [
        ["-rwxr-xr-x", "1000", "1000"],
        ["-rw-r--r--", "1000", "1000"],
        ["-rw-r--r--", "1000", "1000"],
    ]


@pytest.mark.parametrize(
    ("step", "hint", "wants_network"),
    [
        ("RUN echo x > /in-root", "USER root", False),
        ("RUN echo 'curl: (6) Could not resolve host: x'; exit 6", "--network", True),
        ("RUN exit 3", "", False),
        ("COPY missing /x", "", False),
    ],
)
def test_a_hint_fits_the_failure(
    home: Path, tmp_path: Path, step: str, hint: str, *, wants_network: bool
) -> None:
    """The network is named where a step looks for one, and the user where it lacks rights."""
    add_small_image(home)
    (tmp_path / "Dockerfile").write_text(f"FROM small\n{step}\n")
    with pytest.raises(StepError) as caught:
        build_dockerfile(home, BuildRequest(context=tmp_path, name="failing:1"))
    assert bool(caught.value.hint) is bool(hint)
    assert hint in caught.value.hint
    assert caught.value.wants_network is wants_network


def content(image: Image, path: str) -> str:
    """A file of an image."""
    shown = ["unsquashfs", "-cat", str(image.rootfs), path]
    return subprocess.run(shown, capture_output=True, text=True, check=True).stdout


def test_the_onbuild_of_an_image_runs_in_what_starts_from_it(home: Path, tmp_path: Path) -> None:
    """With the context of that build, each copy on its own; and not again in what starts from
    that."""
    add_small_image(home)
    (tmp_path / "first").mkdir()
    text = "FROM small\nUSER root\n"
    text += "".join(f"ONBUILD COPY --exclude=not-{to} . /{to}/\n" for to in "ab")
    (tmp_path / "first/Dockerfile").write_text(text)
    build_dockerfile(home, BuildRequest(context=tmp_path / "first", name="first:1"))
    for number, base in ((2, "first:1"), (3, "second:2")):
        (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN ls -R /a /b > /{number}\n")
        for name in ("not-a", "not-b", "first/Dockerfile"):
            (tmp_path / name).write_text(str(number))
        request = BuildRequest(context=tmp_path, name=f"second:{number}")
        image, _ = build_dockerfile(home, request)
        assert [content(image, f"{to}/not-{of}") for to, of in ("ab", "ba")] == ["2", "2"]
        for missing in ("a/not-a", "b/not-b"):
            with pytest.raises(subprocess.CalledProcessError):
                content(image, missing)
        assert image.on_build == ()


LEFT = """FROM with-volume AS first
RUN mkdir -p /srv/data && echo base > /srv/data/seed
VOLUME /var/lib/app
RUN mkdir -p /var/lib/app && echo hello > /var/lib/app/seed
WORKDIR /a/b
WORKDIR c
WORKDIR /z
USER user
WORKDIR /new/app
COPY Dockerfile /new/app
FROM first
RUN echo mine > mine
COPY pages/[[]id]/f .
"""


def test_volumes_and_work_directories_are_left_as_by_buildkit(home: Path, tmp_path: Path) -> None:
    """What a step writes below a volume of the file or of its base stays; each work directory is
    there, its user's; a literal bracket is one."""
    default = Store(home).find("default")
    config = replace(default.config, user="root", volumes=("/srv/data",))
    add_small_image(home, "with-volume", config)
    for name in ("[id]", "i"):
        (tmp_path / "pages" / name).mkdir(parents=True)
        (tmp_path / "pages" / name / "f").write_text(name)
    (tmp_path / "Dockerfile").write_text(LEFT)
    made, _ = build_dockerfile(home, BuildRequest(context=tmp_path, name="left:1"))
    assert (made.volumes, made.workdir) == (("/srv/data", "/var/lib/app"), "/new/app")
    assert content(made, "srv/data/seed") == "base\n"
    assert content(made, "var/lib/app/seed") == "hello\n"
    assert content(made, "new/app/f") == "[id]"
    argv = ["unsquashfs", "-lln", str(made.rootfs)]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {words[-1].partition("/")[2]: words[:2] for line in listed if (words := line.split())}
    for path in ("a/b/c", "z"):
        assert found[path] == ["drwxr-xr-x", "0/0"]
    for path in ("new", "new/app"):
        assert found[path] == ["drwxr-xr-x", "1000/1000"]
    assert found["new/app/mine"] == ["-rw-r--r--", "1000/1000"]
    assert found["new/app/Dockerfile"] == ["-rw-r--r--", "0/0"]


def test_a_base_that_an_earlier_version_loaded_is_loaded_again(home: Path, tmp_path: Path) -> None:
    """It may have volumes, below which buildah discards what steps write."""
    add_small_image(home, "early")
    request = BuildRequest(context=tmp_path, name="early:1")
    kept = home / "build-bases" / Store(home).find("early").digest
    for step in ("true", "echo"):
        (tmp_path / "Dockerfile").write_text(f"FROM early\nRUN {step}\n")
        build_dockerfile(home, request)
        assert (kept / "image-id.2").is_file()
        (kept / "image-id.2").rename(kept / "image-id")


def test_a_step_without_a_network_is_named_where_the_build_has_one(
    home: Path, tmp_path: Path
) -> None:
    """buildah gives all steps one network: the command says of which step that is not true."""
    add_small_image(home)
    step = "RUN --network=none cat /proc/net/dev > /tmp/devices"
    (tmp_path / "Dockerfile").write_text(f"FROM small\nRUN true\n{step}\n")
    devices = {}
    for option in ((), ("--network",)):
        argv = [sys.executable, "-m", "belljar", "image", "build", "-t", "offline:1", *option]
        done = subprocess.run([*argv, str(tmp_path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert ("line 3: " in done.stderr) is bool(option)
        listed = content(Store(home).find("offline:1"), "tmp/devices").splitlines()[2:]
        devices[option] = {line.partition(":")[0].strip() for line in listed}
    here = Path("/proc/net/dev").read_text().splitlines()[2:]
    assert devices[()] == {"lo"}
    assert devices[("--network",)] == {line.partition(":")[0].strip() for line in here}


@pytest.mark.thorough  # its base has 400 MiB
def test_packages_of_a_local_index(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip in a build reads what this host's configuration names: an index whose pages link to
    wheels beside it. Its directory and theirs are shown, and nothing is fetched elsewhere."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)  # the build's root is nobody here
        wheel = Path(folder, "pypi/files/local_tool-1.0-py3-none-any.whl")
        page = Path(folder, "pypi/simple/local-tool/index.html")
        info = "local_tool-1.0.dist-info"
        parts = {
            "local_tool.py": "WORD = 'from the index'\n",
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: local-tool\nVersion: 1.0\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": f"local_tool.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n",
        }
        for path in (wheel, page):
            path.parent.mkdir(parents=True)
        with zipfile.ZipFile(wheel, "w") as packed:
            for name, text in parts.items():
                packed.writestr(name, text)
        page.write_text(f'<a href="../../files/{wheel.name}">{wheel.name}</a>')
        settings = Path(folder, "pip.conf")
        settings.write_text(f"[global]\nindex-url = file://{page.parents[1]}\n")
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
        name = "local-tool:1"
        image = build_packages(home, name, base="inspect", apt=[], pip=["local-tool"])
    policy = parse_policy(
        f"belljar: 1\nrisk: low\nimage: {name}\n".encode(), source="a test", base=None
    )
    with sync.open_cell(policy) as cell:
        done = cell.exec(["python3", "-c", "import local_tool; print(local_tool.WORD)"])
    assert (done.returncode, done.stdout_text) == (0, "from the index\n")
    assert image.built["network"] is True


def test_a_context_that_does_not_fit_is_refused_before_a_base_is_loaded(
    home: Path, tmp_path: Path
) -> None:
    """Another file than its checksum says."""
    add_small_image(home)
    (tmp_path / "f").write_text("other")
    (tmp_path / "Dockerfile").write_text("FROM small\nADD --checksum=sha256:0 f /f\n")
    lines: list[str] = []
    with pytest.raises(PolicyError, match="line 2"):
        build_dockerfile(home, BuildRequest(context=tmp_path, name="other:1"), report=lines.append)
    assert lines == []
