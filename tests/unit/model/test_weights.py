"""Weights in the store: once by digest, and never others than those that were added."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from belljar.errors import HostError, PolicyError
from belljar.isolation.microvm.guest_files import ensure_data_disk
from belljar.model import weights
from belljar.model.serve import load_model
from belljar.model.weights import (
    StoredWeights,
    add_weights,
    file_digest,
    find_weights,
    list_weights,
    remove_weights,
    verify_weights,
)
from belljar.store.locks import claimed

FILES = {"sub/b.bin": b"blob", "z.json": b"{}"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"weights " * 1000)
    return path


@pytest.fixture
def added(source: Path, tmp_path: Path) -> StoredWeights:
    return add_weights(source, home=tmp_path / "home")


def test_a_file_is_stored_once_by_its_digest(source: Path, added: StoredWeights) -> None:
    """Adding it again gives the same entry, found by digest or its beginning."""
    home = added.path.parents[1]
    assert added.digest == hashlib.sha256(source.read_bytes()).hexdigest()
    assert add_weights(source, home=home) == added
    assert list_weights(home) == [added]
    for ref in (added.digest, f"sha256:{added.digest[:8]}"):
        assert find_weights(ref, home=home) == added
    assert (added.path / "data" / added.served).read_bytes() == source.read_bytes()
    assert (added.path / "data" / added.served).stat().st_mode & 0o444 == 0o444


def test_a_directory_has_one_digest_of_all_its_files(tmp_path: Path) -> None:
    """The SHA-256 of the sorted lines `sha256  path`."""
    source = tmp_path / "model"
    (source / "sub").mkdir(parents=True)
    (source / "z.json").write_text("{}")
    (source / "sub" / "b.bin").write_text("blob")
    added = add_weights(source, home=tmp_path / "home")
    assert (added.is_directory, added.served) == (True, "")
    assert (added.path / "data" / "sub" / "b.bin").read_text() == "blob"
    digests = {name: hashlib.sha256(text).hexdigest() for name, text in FILES.items()}
    lines = "".join(f"{digests[name]}  {name}\n" for name in FILES)
    assert added.digest == hashlib.sha256(lines.encode()).hexdigest()


def test_a_file_that_changes_while_it_is_added_is_not_trusted(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stamps are older than digests: later bytes are never taken for those that were digested."""

    def digest_then_change(path: Path) -> str:
        digest = file_digest(path)
        source.write_bytes(b"other bytes")
        return digest

    monkeypatch.setattr(weights, "file_digest", digest_then_change)
    added = add_weights(source, home=tmp_path / "home")
    monkeypatch.undo()
    if (added.path / "data" / added.served).read_bytes() == b"other bytes":
        with pytest.raises(HostError):
            verify_weights(added)
    else:  # a reflink or a copy
        verify_weights(added)


@pytest.mark.promise("2.8")
@pytest.mark.parametrize("changed", [b"W", b"", None])
def test_weights_that_are_not_what_was_added_are_refused(
    changed: bytes | None, added: StoredWeights
) -> None:
    """Other bytes, fewer, or none: even with times set back."""
    stored = added.path / "data" / added.served
    times, content = stored.stat(), stored.read_bytes()
    stored.unlink()
    if changed is not None:
        stored.write_bytes(changed + content[1:] if changed else content[:4000])
        os.utime(stored, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(HostError):
        verify_weights(added)


def test_weights_in_use_stay(added: StoredWeights) -> None:
    """A running cell keeps them; afterwards they go, whole."""
    home = added.path.parents[1]
    with claimed(added.path), pytest.raises(HostError):
        remove_weights(added.digest, home=home)
    remove_weights(added.digest, home=home)
    assert list_weights(home) == []
    assert list(added.path.parent.iterdir()) == []


def test_what_can_be_no_weights_is_refused(tmp_path: Path) -> None:
    """Nothing there; in a directory a pipe, a device, any link, or a name of two lines."""
    with pytest.raises(PolicyError):
        add_weights(tmp_path / "none", home=tmp_path / "home")
    odd = tmp_path / "odd"
    for make in (
        lambda: os.mkfifo(odd / "pipe"),
        lambda: os.mknod(odd / "null", 0o20666, os.makedev(1, 3)),
        lambda: (odd / "link").symlink_to("/etc/passwd"),
        lambda: (odd / "link").symlink_to("/etc"),
        lambda: (odd / "link").symlink_to("/nowhere"),
        lambda: (odd / f"a\n{'0' * 64}  b").write_text(""),
    ):
        odd.mkdir()
        (odd / "good").write_text("good")
        make()
        with pytest.raises(PolicyError):
            add_weights(odd, home=tmp_path / "home")
        shutil.rmtree(odd)
    assert list_weights(tmp_path / "home") == []


def test_weights_that_changed_back_are_not_unchanged(source: Path, added: StoredWeights) -> None:
    """A cell that ran meanwhile saw the others: the same bytes pass a start, never an end."""
    stored = added.path / "data" / added.served
    held = verify_weights(added)
    verify_weights(held, has_run=True)
    contents = stored.read_bytes()
    stored.chmod(0o644)
    stored.write_bytes(b"others")
    stored.write_bytes(contents)
    with pytest.raises(HostError, match="changed"):
        verify_weights(held, has_run=True)
    again = verify_weights(find_weights(added.digest, home=added.path.parents[1]))
    verify_weights(again, has_run=True)


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="makes a disk")
def test_a_microvms_disk_is_looked_at_after_it_ran(added: StoredWeights) -> None:
    """The cell read that, not the files: one that was written to in between is not unchanged."""
    home = added.path.parents[1]
    ensure_data_disk(home, added.path)
    verify_weights(added, has_run=True, in_vm=True)
    disk = added.path / "disk.sqfs"
    content = disk.read_bytes()
    disk.chmod(0o644)
    disk.write_bytes(content)
    verify_weights(added, has_run=True)
    with pytest.raises(HostError, match="changed"):
        verify_weights(added, has_run=True, in_vm=True)
    ensure_data_disk(home, added.path)
    verify_weights(added, has_run=True, in_vm=True)


def test_a_gpu_that_this_host_lacks_starts_nothing(added: StoredWeights) -> None:
    """The missing device file is named."""
    model = {"weights": {"sha256": added.digest}, "gpu": {"devices": ["/dev/nvidia999"]}}
    policy = {"belljar": 1, "risk": "low", "model": model}
    with pytest.raises(HostError, match="/dev/nvidia999"):
        load_model(policy, home=added.path.parents[1])
