"""Docker as the peer: a daemon of the benchmark's own, with the same root filesystem as the cell's image, gone afterwards."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

IMAGE = "peer:1"


@dataclass(frozen=True)
class Docker:
    """A client of one daemon."""

    socket: Path

    def argv(self, *args: str) -> list[str]:
        """The command line of a Docker command."""
        return ["docker", "-H", f"unix://{self.socket}", *args]

    def run(self, *args: str, input: bytes | None = None) -> bytes:  # noqa: A002 - subprocess's own word
        """Run it and return its standard output."""
        return subprocess.run(self.argv(*args), input=input, check=True, capture_output=True).stdout


@contextmanager
def docker(rootfs: Path) -> Iterator[Docker]:
    """A daemon with `rootfs` (a squashfs) imported as `IMAGE`. Needs root and docker.io."""
    for tool in ("dockerd", "docker", "unsquashfs"):
        if shutil.which(tool) is None:
            raise SystemExit(
                f"the peer is missing: no {tool} on the PATH (Debian: apt-get install docker.io squashfs-tools)"
            )
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        base = Path(folder)
        daemon = _start(base)
        try:
            client = Docker(base / "docker.sock")
            _wait(client, daemon)
            _import(client, rootfs, base)
            yield client
        finally:
            daemon.terminate()
            daemon.wait(timeout=60)


def _start(base: Path) -> subprocess.Popen[bytes]:
    argv = ["dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none", "--data-root", str(base / "data")]
    argv += ["--exec-root", str(base / "exec"), "--pidfile", str(base / "pid"), "-H", f"unix://{base}/docker.sock"]
    log = (base / "log").open("wb")
    return subprocess.Popen(argv, stdout=log, stderr=log)


def _wait(client: Docker, daemon: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while subprocess.run(client.argv("info"), capture_output=True, check=False).returncode:
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("dockerd did not start")
        time.sleep(0.2)


def _import(client: Docker, rootfs: Path, base: Path) -> None:
    tree = base / "tree"
    subprocess.run(
        ["unsquashfs", "-quiet", "-no-progress", "-d", str(tree), str(rootfs)], check=True, capture_output=True
    )
    tar = subprocess.Popen(["tar", "-C", str(tree), "-c", "."], stdout=subprocess.PIPE)
    subprocess.run(client.argv("import", "-", IMAGE), stdin=tar.stdout, check=True, capture_output=True)
    if tar.wait():
        raise SystemExit("the peer's image could not be packed")
    shutil.rmtree(tree)
