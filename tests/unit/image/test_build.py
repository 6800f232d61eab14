"""What of a made file system goes into an image."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tests.fakes.images import directory, entry, hard_link, layer

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


def test_the_command_names_no_mirror_and_no_product() -> None:
    """Mirrors come from a file of derived sources; nothing in the image can say who made it."""
    argv = mmdebstrap_argv(
        RECIPES["default"],
        program="/usr/bin/mmdebstrap",
        sources=Path("/s/m.sources"),
        arch="amd64",
        mode="root",
        apt_options={"Acquire::http::Proxy": "p"},
    )
    assert argv[-3:] == ["bookworm", "-", "/s/m.sources"]
    assert '--aptopt=Acquire::http::Proxy "p"' in argv
    assert not [word for word in argv if "://" in word or "belljar" in word]
