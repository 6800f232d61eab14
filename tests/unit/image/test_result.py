"""What is believed of a build's result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.images import entry, layer

from belljar.image.buildah import pack_result
from belljar.image.config import debian_arch
from belljar.image.layers import LayerError
from belljar.image.tools import Inside


class Forger(Inside):
    """A namespace that hostile code has taken over, with the rights of its root."""

    def __init__(self, work: Path, act: Callable[[Path], object]) -> None:
        work.mkdir(parents=True)
        super().__init__(first_uid=0, work=work, user_fd=-1, mounts_fd=-1, report=print)
        self.act = act

    def run(self, name: str, *words: str, **_: bool) -> bytes:
        self.act(self.work)
        return b""


def honest(work: Path, **forged: bytes) -> None:
    config = {"architecture": debian_arch(), "os": "linux", "config": {}}
    written = {
        "layer": layer(entry("etc/issue", b"made")),
        "image": json.dumps({"Config": json.dumps(config)}).encode(),
    }
    for name, content in (written | forged).items():
        (work / "out" / name).write_bytes(content)


def elsewhere(work: Path) -> None:
    """Put a link to a directory of the host in the place of the results."""
    (work / "out").rename(work / "gone")
    (work / "out").symlink_to(work.parents[1] / "host")


@pytest.mark.parametrize(
    "act",
    [
        elsewhere,
        lambda work: (work / "out/layer").symlink_to(work.parents[1] / "host/layer"),
        lambda work: (work / "out/layer").mkdir(),
        lambda work: honest(work, layer=b"\0" * 100),
        lambda work: honest(work, layer=layer(entry("../x", b"x"))),
        lambda work: honest(work, image=b"[]"),
        lambda work: honest(work, image=b"{" * (17 << 20)),
    ],
)
def test_forged_results_are_refused_and_no_file_of_the_host_is_taken(
    tmp_path: Path, act: Callable[[Path], object]
) -> None:
    """The host's own files are neither read, moved nor changed."""
    host = tmp_path / "host"
    host.mkdir()
    for name in ("layer", "image"):
        (host / name).write_text("the host's")
    inside = Forger(tmp_path / "scratch/build", act)
    with pytest.raises(LayerError):
        pack_result(inside, (), (), keep_setuid=False)
    assert {path.read_text() for path in host.iterdir()} == {"the host's"}
    taken = Forger(tmp_path / "taken/build", honest)  # a step has made the results' directory
    (taken.work / "out").mkdir()
    with pytest.raises(LayerError):
        pack_result(taken, (), (), keep_setuid=False)


def test_what_was_packed_is_out_of_the_namespaces_reach(tmp_path: Path) -> None:
    """The same files, unforged, are accepted; the volumes are the Dockerfile's."""
    inside = Forger(tmp_path / "scratch/build", honest)
    result = pack_result(inside, (), ("/v",), keep_setuid=False)
    assert result["config"].volumes == ("/v",)
    assert result["rootfs"] == tmp_path / "scratch/rootfs"
    assert result["rootfs"].read_bytes().startswith(b"hsqs")
