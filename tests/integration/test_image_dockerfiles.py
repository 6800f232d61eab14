"""Dockerfiles that BuildKit builds, built with a real buildah."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.fakes.images import add_small_image

from belljar.image.buildah import BuildRequest, build_dockerfile
from belljar.image.config import debian_arch

pytestmark = [pytest.mark.slow]

FORMS = r"""# syntax=docker/dockerfile:1
ARG TAG=12 BASE=small EXT=a.b.c
FROM ${BASE} AS bin-{arch}
USER root
ARG Z=3
RUN echo {arch} > /arch \
 && echo two > /two
FROM not-in-the-store AS bin-other
RUN --security=insecure true
FROM --platform=$BUILDPLATFORM bin-${TARGETARCH} AS last
ARG A=1 B=2 EXT
RUN [ "$A$B$Z" = 123 ]
ENV W=${EXT:-none} X=${NO:-x} Y=${A:+y} D="a \$b 'q'" E="back\\slash"
RUN echo "$W $X $Y $D $E" > /env
COPY --link --chmod=755 --chown=1000:1000 src/ /srv/
ADD f /f
RUN --network=none true
WORKDIR /work
RUN --mount=type=bind,target=. ls > /seen
RUN --mount=type=tmpfs,target=/mnt/t,size=10m ls -a /mnt/t > /tmpfs
RUN --mount=type=secret,id=tok,required=false,env=TOK echo "[$TOK]" > /tok
RUN --mount=type=cache,target=/c,sharing=locked,id=x,uid=1000,mode=0700 ls -ldn /c > /cache
ADD --chown=1000:1000 f <<'EOF' <<B /docs/
$W "q"
EOF
b
B
HEALTHCHECK --start-interval=1s --interval=5s CMD true
ENTRYPOINT []
CMD echo $A
"""


def test_the_forms_of_buildkit_are_built(home: Path, tmp_path: Path) -> None:
    """They mean what they mean to BuildKit."""
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
    (tmp_path / "c/Dockerfile").write_text(FORMS.replace("{arch}", debian_arch()))
    made, _ = build_dockerfile(home, BuildRequest(context=tmp_path / "c", name="forms:1"))
    assert made.healthcheck is not None
    assert made.healthcheck.interval_ns == 5 * 10**9
    assert (made.cmd, made.workdir) == (("/bin/sh", "-c", "echo $A"), "/work")

    def shown(*options: str) -> str:
        argv = ["unsquashfs", *options]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    expected = {
        "arch": debian_arch(),
        "two": "two",
        "env": "a.b.c x y a $b 'q' back\\slash",
        "f": "content",
        "tmpfs": ". ..",
        "tok": "[]",
        "docs/EOF": '$W "q"',
        "docs/B": "b",
        "docs/f": "content",
        "seen": "Dockerfile f src",
    }
    found = {name: shown("-cat", str(made.rootfs), name) for name in (*expected, "cache")}
    assert found.pop("cache").startswith("drwx------ 2 1000")
    assert {name: " ".join(text.split()) for name, text in found.items()} == expected
    listed = {
        words[-1]: words
        for line in shown("-lln", str(made.rootfs)).splitlines()
        if (words := line.split())
    }
    assert listed["squashfs-root/docs/B"][1] == listed["squashfs-root/docs/f"][1] == "1000/1000"
    for name in ("run", "sub/t", "x.pem"):
        assert listed[f"squashfs-root/srv/{name}"][:2] == ["-rwxr-xr-x", "1000/1000"]
