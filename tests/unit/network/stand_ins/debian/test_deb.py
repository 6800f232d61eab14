"""Reading control data of package files: what dpkg makes is read, what attackers make is refused
within the bounds."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.registries import ar_of, make_deb, tar_of

from belljar.network.stand_ins import debian as deb

GOOD = (
    b"Package: a-b\nVersion: 1:2.0~rc1-3\nArchitecture: amd64\nDescription: short\n long\n .\n"
    b" longer\n"
)


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".zst"])
def test_control_data_of_every_packing(tmp_path: Path, packing: str) -> None:
    """Plain, gzip, xz and zstd."""
    if packing == ".zst":
        pytest.importorskip("zstandard", reason="zstandard isn't installed: pip install zstandard")
    control = deb.read_control(
        make_deb(tmp_path, "tool", "1.0", packing=packing, more="Depends: libc6\n")
    )
    assert (control.package, control.version, control.architecture) == ("tool", "1.0", "all")
    assert control.fields["depends"] == "Depends: libc6"
    assert control.fields["description"] == "Description: made for a test\n more of it"


def test_a_stanza_is_kept_as_it_is() -> None:
    """With its continuation lines."""
    assert "\n".join(deb.parse_control(GOOD).fields.values()) + "\n" == GOOD.decode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (GOOD + b"\nPackage: second\n", "line 8"),
        (GOOD + b"Package: again\n", "line 8"),
        (b" starts with a space\n" + GOOD, "line 1"),
        (GOOD.replace(b"a-b", b"../b"), "no package"),
        (GOOD.replace(b"1:2.0~rc1-3", b"1/../2"), "no version"),
        (GOOD.replace(b"amd64", b"any thing"), "no architecture"),
        (b"\xff" + GOOD, "UTF-8"),
        (GOOD + b"X: a\x00b\n", "line 8"),
        (b"", "line 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(content: bytes, reason: str) -> None:
    """A second stanza above all: it would add a package to the index."""
    with pytest.raises(deb.DebError, match=reason):
        deb.parse_control(content)


@pytest.mark.parametrize(
    "content",
    [
        b"PK",
        ar_of([("debian-binary", b"2.0\n")]),
        ar_of([("control.tar.gz", b"xx")]),
        ar_of([("control.tar.gz", gzip.compress(tar_of({"control": GOOD}))[:40])]),
        ar_of([("control.tar.xz", lzma.compress(tar_of({"control": GOOD}))[:40])]),
        ar_of([("control.tar.br", b"x")]),
        ar_of([("control.tar", tar_of({"./other": b""}))]),
        ar_of([("control.tar", b"x" * 600)]),
        ar_of([("control.tar.gz", gzip.compress(bytes(8 << 20)))]),
        ar_of([("control.tar", bytes(deb.MAX_CONTROL_BYTES + 512))]),
        ar_of([("control.tar", tar_of({"control": bytes(deb.MAX_STANZA_BYTES + 1)}))]),
        ar_of([("control.tar", tar_of({"control": GOOD})[:520])]),
        b"!<arch>\n" + b"x" * 60,
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes) -> None:
    """No archive, broken ones, and too large ones."""
    path = tmp_path / "a.deb"
    path.write_bytes(content)
    with pytest.raises(deb.DebError):
        deb.read_control(path)


@given(st.binary(max_size=400), st.sampled_from(["raw", "ar", "tar", "control"]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, place: str) -> None:
    """At every layer, nothing but `DebError`."""
    whole = {
        "raw": content,
        "ar": b"!<arch>\n" + content,
        "tar": ar_of([("control.tar.gz", gzip.compress(content))]),
        "control": ar_of([("control.tar", tar_of({"control": content}))]),
    }[place]
    path = tmp_path / "a.deb"
    path.write_bytes(whole)
    try:
        deb.read_control(path)
    except deb.DebError as error:
        assert str(error)  # noqa: PT017 - both ways are right; this one must say why


@given(st.text(max_size=300))
@settings(deadline=None)
def test_a_stanza_stays_one(text: str) -> None:
    """Whatever is taken as a stanza has no blank line, so it can't become two in an index."""
    for content in (text, GOOD.decode() + text):
        try:
            control = deb.parse_control(content.encode("utf-8", "replace"))
        except deb.DebError:
            continue
        lines = "\n".join(control.fields.values()).split("\n")
        assert all(line.strip() for line in lines)
