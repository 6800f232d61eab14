"""Weights in the store: once by digest, and never others than those that were added."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from belljar.errors import HostError, PolicyError
from belljar.isolation.program_root import file_stamp
from belljar.model.weights import (
    StoredWeights,
    add_weights,
    digest_of_files,
    find_weights,
    list_weights,
    remove_weights,
    verify_weights,
)
from belljar.store.locks import claimed


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of weights that any cell could read."""
    path = tmp_path / "small.gguf"
    path.write_bytes(b"weights " * 1000)
    return path


@pytest.fixture
def added(source: Path, tmp_path: Path) -> StoredWeights:
    """The same, in a store."""
    return add_weights(source, home=tmp_path / "home")


def test_a_file_is_stored_once_by_its_digest(source: Path, added: StoredWeights) -> None:
    """Adding it again gives the same entry, found by digest, its beginning, or name."""
    home = added.path.parents[1]
    assert added.digest == hashlib.sha256(source.read_bytes()).hexdigest()
    assert add_weights(source, home=home) == added
    assert list_weights(home) == [added]
    for ref in (added.digest, f"sha256:{added.digest[:8]}", "small.gguf"):
        assert find_weights(ref, home=home) == added
    assert (added.data.directory / added.served).read_bytes() == source.read_bytes()
    assert (added.data.directory / added.served).stat().st_mode & 0o444 == 0o444


def test_a_private_file_is_copied_and_made_readable(source: Path, tmp_path: Path) -> None:
    """A cell's ids are none of this host's, and the original's mode stays."""
    source.chmod(0o600)
    added = add_weights(source, home=tmp_path / "home")
    stored = added.data.directory / added.served
    assert stored.stat().st_mode & 0o777 == 0o444
    assert source.stat().st_mode & 0o777 == 0o600


def test_a_directory_has_one_digest_of_all_its_files(tmp_path: Path) -> None:
    """Links are followed, as model hubs keep files; another name or byte is another digest."""
    source = tmp_path / "model"
    (source / "sub").mkdir(parents=True)
    (source / "a.json").write_text("{}")
    (tmp_path / "blob").write_text("blob")
    (source / "sub" / "b.bin").symlink_to(tmp_path / "blob")
    added = add_weights(source, home=tmp_path / "home")
    assert added.is_directory
    assert added.served == ""
    assert (added.data.directory / "sub" / "b.bin").read_text() == "blob"
    assert not (added.data.directory / "sub" / "b.bin").is_symlink()
    assert added.digest == digest_of_files(added.files)


def test_unchanged_weights_are_not_read_again(added: StoredWeights) -> None:
    """Sizes and times of the kernel are enough."""
    stored = added.data.directory / added.served
    before = stored.stat().st_atime_ns
    verify_weights(added)
    assert stored.stat().st_atime_ns == before


@pytest.mark.parametrize("how", ["changed", "truncated", "missing", "replaced"])
def test_weights_that_are_not_what_was_added_are_refused(how: str, added: StoredWeights) -> None:
    """Whatever was done to the bytes, even with times set back."""
    stored = added.data.directory / added.served
    times = stored.stat()
    content = stored.read_bytes()
    stored.chmod(0o644)
    match how:
        case "changed":
            stored.write_bytes(b"W" + content[1:])
        case "truncated":
            os.truncate(stored, len(content) // 2)
        case "missing":
            stored.unlink()
        case "replaced":
            stored.unlink()
            stored.write_bytes(content[::-1])
    if stored.exists():
        os.utime(stored, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(HostError):
        verify_weights(added)


def test_the_original_may_go(source: Path, added: StoredWeights) -> None:
    """That changes times of a linked file, not its bytes: they are compared once, then known."""
    source.unlink()
    verify_weights(added)
    again = find_weights(added.digest, home=added.path.parents[1])
    assert again.stamps == {added.served: file_stamp(added.data.directory / added.served)}


def test_weights_in_use_stay(added: StoredWeights) -> None:
    """A running cell keeps them; afterwards they go, whole."""
    home = added.path.parents[1]
    with claimed(added.path), pytest.raises(HostError):
        remove_weights(added.digest, home=home)
    remove_weights(added.digest, home=home)
    assert list_weights(home) == []
    assert list(added.path.parent.iterdir()) == []


def test_what_can_be_no_weights_is_refused(tmp_path: Path) -> None:
    """Nothing there, or a pipe in a directory."""
    with pytest.raises(PolicyError):
        add_weights(tmp_path / "none", home=tmp_path / "home")
    (tmp_path / "odd").mkdir()
    os.mkfifo(tmp_path / "odd" / "pipe")
    with pytest.raises(PolicyError):
        add_weights(tmp_path / "odd", home=tmp_path / "home")
    assert list_weights(tmp_path / "home") == []


def test_unknown_weights_are_named(tmp_path: Path) -> None:
    """With what to do."""
    with pytest.raises(HostError) as caught:
        find_weights("0" * 64, home=tmp_path)
    assert caught.value.hint
