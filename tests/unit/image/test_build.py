"""What of a made file system goes into an image."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from tests.fakes.images import directory, entry, hard_link, layer

from belljar.image import build
from belljar.image.build import RECIPES, cleansed, mmdebstrap_argv

DAY = 86400


def test_the_stream_is_cleansed_and_times_are_capped() -> None:
    """Hard links stay, the host's files are neutral ones, times are the archive's."""
    made = layer(
        *(directory("./"), directory("./etc"), entry("./etc/hostname", b"the-host")),
        entry("./etc/shadow", b"root:*:20000:0:99999:7:::\n", mtime=2_000_000_000),
        entry("./bin/a", b"a", mtime=1000, uname="someone"),
        hard_link("./bin/b", "./bin/a"),
        form=tarfile.GNU_FORMAT,
    )
    stream = [
        (each.info, b"".join(each.chunks)) for each in cleansed(io.BytesIO(made), made_s=DAY * 100)
    ]
    infos = {info.name: info for info, _ in stream}
    contents = {info.name: content for info, content in stream}
    assert contents["etc/hostname"] == b"localhost\n"
    assert (contents["etc/machine-id"], contents["bin/a"]) == (b"", b"a")
    assert contents["etc/shadow"] == b"root:*:100:0:99999:7:::\n"
    assert (infos["etc/shadow"].mtime, infos["bin/a"].mtime) == (DAY * 100, 1000)
    assert (infos["bin/a"].uname, infos["bin/b"].linkname) == ("", "bin/a")


def test_the_command_names_no_mirror_and_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's sources and options alone go in."""
    monkeypatch.setattr(build, "tool", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(build, "host_acquire_options", lambda: {"Acquire::http::Proxy": "p"})
    argv = mmdebstrap_argv(RECIPES["default"], "root", Path("/s/m.sources"))
    assert argv[-1] == "/s/m.sources"
    assert '--aptopt=Acquire::http::Proxy "p"' in argv
    assert not [word for word in argv if "http" in word.lower() and "Acquire" not in word]
    assert "belljar" not in " ".join(argv)
