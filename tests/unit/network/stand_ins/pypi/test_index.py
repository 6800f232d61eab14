"""What the index knows of a directory."""

from __future__ import annotations

import asyncio
import zipfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from tests.fakes.registries import make_tar, make_wheel

from belljar.network.stand_ins import pypi
from belljar.network.stand_ins.files import StoredFile


def shelved(path: Path) -> StoredFile:
    """A file as a directory's list has it."""
    return StoredFile(name=path.name, path=path, size_bytes=0, mtime_s=0)


def test_metadata_of_wheels_and_source_archives(tmp_path: Path) -> None:
    """METADATA of a wheel, PKG-INFO at the top of a source archive, not one deeper down."""
    wheel = make_wheel(tmp_path, "one", "1.0")
    sdist = make_tar(
        tmp_path / "two-1.tar.gz",
        {"two-1/two.egg-info/PKG-INFO": b"no", "two-1/PKG-INFO": b"Name: two\n"},
    )
    assert b"Name: one" in pypi.metadata_of(shelved(wheel))
    assert pypi.metadata_of(shelved(sdist)) == b"Name: two\n"


def test_metadata_that_is_too_large_is_left_out(tmp_path: Path) -> None:
    """A small file that unpacks to much costs its bound, and is then a package without metadata."""
    path = tmp_path / "bomb-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb-1.dist-info/METADATA", bytes(50 << 20))
    assert pypi.metadata_of(shelved(path)) == b""


@given(st.binary(max_size=500), st.sampled_from(["whl", "tar.gz", "zip"]), st.booleans())
@example(b"\x1f\x8b\x08", "tar.gz", False)
def test_any_file_has_metadata_or_none(
    tmp_path: Path, content: bytes, ending: str, like_one: bool
) -> None:
    """A broken package is one without metadata, never an exception."""
    path = tmp_path / f"a-1.{ending}"
    start = (b"PK\x03\x04" if ending != "tar.gz" else b"\x1f\x8b\x08\0") if like_one else b""
    path.write_bytes(start + content)
    assert isinstance(
        pypi.metadata_of(shelved(path)),
        bytes,
    )


def test_projects_are_by_their_normal_name(tmp_path: Path) -> None:
    """`My_Pkg` and `my.pkg` are one project; its files come in the order of versions."""
    for name, version in [("My_Pkg", "1.10"), ("my.pkg", "1.9"), ("my_pkg", "2.0rc1")]:
        make_wheel(tmp_path, name, version)
    (tmp_path / "README.txt").write_text("no package")
    known = pypi.Index(tmp_path)
    assert set(known.projects) == {"my-pkg"}
    found = asyncio.run(known.of_project("MY-pkg"))
    assert [str(one.named.version) for one in found] == ["1.9", "1.10", "2.0rc1"]
    document = pypi.release("my-pkg", "", found, "http://x")
    assert document is not None
    assert document["info"]["version"] == "1.10"  # type: ignore[index]
    assert pypi.release("my-pkg", "3", found, "http://x") is None


def test_what_a_file_says_cannot_become_markup(tmp_path: Path) -> None:
    """Requires-Python is escaped in the page."""
    make_wheel(tmp_path, "a", "1", requires_python='>=3"><script>')
    found = asyncio.run(pypi.Index(tmp_path).of_project("a"))
    assert "<script>" not in found[0].link()
    assert "data-requires-python=" in found[0].link()
