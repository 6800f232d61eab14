"""The Debian repository, asked directly, and the control data of its packages: what dpkg makes is
read, what attackers make is refused within the bounds."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.registries import Ledger, ar_of, ask, context_for, make_deb, tar_of

from belljar.network.stand_ins import debian as deb
from belljar.network.stand_ins.debian import make
from belljar.network.stand_ins.files import MAX_MEMBER_BYTES, StoredFile
from belljar.network.stand_ins.web import App

GOOD = (
    b"Package: a-b\nVersion: 1:2.0~rc1-3\nArchitecture: amd64\nDescription: short\n long\n .\n"
    b" longer\n"
)


@pytest.mark.parametrize(
    "content",
    [
        b"PK",
        ar_of([("debian-binary", b"2.0\n")]),
        ar_of([("control.tar.gz", b"xx")]),
        ar_of([("control.tar.gz", gzip.compress(tar_of({"control": GOOD}))[:40])]),
        ar_of([("control.tar.xz", lzma.compress(tar_of({"control": GOOD}))[:40])]),
        ar_of([("control.tar", tar_of({"./other": b""}))]),
        ar_of([("control.tar.gz", gzip.compress(bytes(8 << 20)))]),
        ar_of([("control.tar", bytes(deb.MAX_CONTROL_BYTES + 512))]),
        ar_of([("control.tar", tar_of({"control": GOOD + b"\nPackage: second\n"}))]),
        ar_of([("control.tar", tar_of({"control": GOOD.replace(b"a-b", b"../b")}))]),
        ar_of([("control.tar", tar_of({"control": bytes(MAX_MEMBER_BYTES + 1)}))]),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes) -> None:
    """No archive, broken ones, and too large ones."""
    path = tmp_path / "a.deb"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        deb.read_control(StoredFile(name=path.name, path=path, size_bytes=0, mtime_s=0))


@given(st.binary(max_size=400), st.sampled_from(["raw", "ar", "tar", "control"]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, place: str) -> None:
    """At every layer, nothing but `ValueError`."""
    whole = {
        "raw": content,
        "ar": b"!<arch>\n" + content,
        "tar": ar_of([("control.tar.gz", gzip.compress(content))]),
        "control": ar_of([("control.tar", tar_of({"control": content}))]),
    }[place]
    path = tmp_path / "a.deb"
    path.write_bytes(whole)
    try:
        deb.read_control(StoredFile(name=path.name, path=path, size_bytes=0, mtime_s=0))
    except ValueError as error:
        assert str(error)  # noqa: PT017 - both ways are right; this one must say why


@pytest.fixture
def app(tmp_path: Path) -> App:
    """Three packages and one broken one."""
    more = "Filename: /etc/passwd\nSHA256: 00\nDepends: libtool-x\n"
    make_deb(tmp_path, "tool", "1:1.0-2", architecture="amd64", more=more)
    make_deb(tmp_path, "libtool-x", "2.0")
    make_deb(tmp_path, "odd", "1", architecture="riscv64")
    (tmp_path / "broken.deb").write_bytes(b"")
    return make(context_for(tmp_path, Ledger()))


def test_the_index_describes_the_files(app: App, tmp_path: Path) -> None:
    """Place, size and digests are ours, whatever the control file says; each architecture has its
    own and those for all."""
    text = ask(app, "GET", "/dists/x/main/binary-amd64/Packages").body.decode()
    stanzas = {re.search(r"Package: (\S+)", part)[1]: part for part in text.split("\n\n")}  # type: ignore[index]
    assert set(stanzas) == {"tool", "libtool-x"}
    content = (tmp_path / "tool_1.0-2_amd64.deb").read_bytes()
    assert f"SHA256: {hashlib.sha256(content).hexdigest()}\n" in stanzas["tool"]
    assert "/etc/passwd" not in stanzas["tool"]
    assert stanzas["tool"].count("SHA256:") == 1
    assert "Filename: pool/main/libt/libtool-x/libtool-x_2.0_all.deb" in stanzas["libtool-x"]
    assert ask(app, "GET", "/pool/main/t/tool/tool_1.0-2_amd64.deb").body == content
