"""Bounds of what a hostile archive can make this host hold in memory or do, beside its entries."""

from __future__ import annotations

import gzip
import tarfile
import time
from pathlib import Path

import pytest
from tests.fakes.images import BytesOf, directory, entry, layer, symlink

from belljar.image import origin, tree
from belljar.image.layers import ImportLimits, LayerError, read_entries
from belljar.image.origin import files_of_archive
from belljar.image.tree import MergedTree, open_layer

LIMITS = ImportLimits(max_entries=400)
LONG = "d" * 250
DEEP = "/".join([LONG] * 16)
OPAQUE = [entry("d/.wh..wh..opq")] * 250
Entries = list[tuple[tarfile.TarInfo, bytes]]


@pytest.mark.promise("1.8")
@pytest.mark.parametrize(
    ("bound", "entries", "allowed"),
    [
        ("", [entry("/".join(f"{n}/{m}" for m in range(60)) + "/f") for n in range(5)], 3),
        ("_MAX_STEPS", [directory("d"), *(entry(f"d/{n}") for n in range(100)), *OPAQUE], 200),
        ("MAX_TEXT_BYTES", [symlink(f"{n}", "x" * 3000) for n in range(10)], 6),
        ("MAX_TEXT_BYTES", [directory(LONG), *(entry(f"{LONG}/{n}") for n in range(99))], 78),
        ("", [directory(DEEP), symlink("l", DEEP), entry("l/f"), entry(f"l/{LONG}")], 3),
    ],
    ids=["implied-directories", "whiteouts", "links", "paths", "a-path"],
)
def test_a_tree_is_bounded(
    bound: str, entries: Entries, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path is as long as where links lead it."""
    if bound:
        monkeypatch.setattr(tree, bound, 20_000)
    merged = MergedTree(LIMITS)
    merged.begin_layer()
    content = layer(*entries)
    found = list(read_entries(BytesOf(content).pread, len(content)))
    for each in found[:allowed]:
        merged.apply(each)
    with pytest.raises(LayerError):
        merged.apply(found[allowed])


@pytest.mark.promise("1.8")
def test_an_archives_names_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the outer archive, which are held until its image is found."""
    monkeypatch.setattr(origin, "MAX_TEXT_BYTES", 20_000)
    archive = tmp_path / "a.tar"
    for made in ([entry(f"{n}/{LONG}") for n in range(100)], [symlink("n", "x" * 3000)] * 100):
        archive.write_bytes(layer(*made))
        with pytest.raises(LayerError), files_of_archive(archive, tmp_path, LIMITS):
            pass


@pytest.mark.promise("1.8")
def test_many_empty_members_of_a_gzip_file_cost_little(tmp_path: Path) -> None:
    """Each is read in a time that doesn't grow with what follows it."""
    blob = tmp_path / "blob"
    blob.write_bytes(gzip.compress(b"") * 100_000 + gzip.compress(b"x"))
    began = time.process_time()
    opened = open_layer(blob, tmp_path, max_bytes=1 << 20)
    assert opened.pread(2, 0) == b"x"
    opened.close()
    assert time.process_time() - began < 10


@pytest.mark.promise("1.8")
def test_what_a_gzip_file_has_beside_its_content_costs_little(tmp_path: Path) -> None:
    """A long name in its header, and zeros after it, that an archive's own compression hides."""
    blob, packed, zeros = tmp_path / "blob", gzip.compress(b"x"), bytes(16 << 20)
    named = packed[:3] + b"\x08" + packed[4:10] + b"a" * len(zeros) + b"\0" + packed[10:]
    began = time.process_time()
    blob.write_bytes(named)
    open_layer(blob, tmp_path, max_bytes=1 << 20).close()
    blob.write_bytes(packed + zeros)
    with pytest.raises(LayerError):
        open_layer(blob, tmp_path, max_bytes=1 << 20)
    assert time.process_time() - began < 1
