"""A guest's RAM as a file: its digest is of the contents, however they lie on the disk."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.isolation.microvm import guest_files

BLOCK = 64 << 10


def test_holes_and_zeros_are_the_same(tmp_path: Path) -> None:
    """Sparse or written whole: one digest."""
    sparse, full = tmp_path / "sparse", tmp_path / "full"
    full.write_bytes(bytes(32 * BLOCK))
    with sparse.open("wb") as file:
        file.truncate(32 * BLOCK)
    for path in (sparse, full):
        with path.open("r+b") as file:
            file.seek(5 * BLOCK + 3)
            file.write(b"data")
    assert guest_files.digest_memory(sparse) == guest_files.digest_memory(full)


@settings(max_examples=50)
@given(offset=st.integers(0, 8 * BLOCK - 1), other=st.integers(0, 8 * BLOCK - 1))
def test_where_a_byte_is_matters(offset: int, other: int, tmp_path_factory: object) -> None:
    """Two files with one byte each have the same digest when, and only when, it is at the same
    place."""
    directory = Path(tmp_path_factory.mktemp("memory"))  # type: ignore[attr-defined]
    digests = []
    for name, place in (("a", offset), ("b", other)):
        content = bytearray(8 * BLOCK)
        content[place] = 1
        (directory / name).write_bytes(content)
        digests.append(guest_files.digest_memory(directory / name))
    assert (digests[0] == digests[1]) == (offset == other)


def test_the_size_matters(tmp_path: Path) -> None:
    """A file cut short where only zeros were is another."""
    for name, size in (("a", BLOCK), ("b", 2 * BLOCK)):
        (tmp_path / name).write_bytes(bytes(size))
    assert guest_files.digest_memory(tmp_path / "a") != guest_files.digest_memory(tmp_path / "b")
