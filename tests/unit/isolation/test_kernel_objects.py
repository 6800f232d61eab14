"""Devices, tables and keys of a cell are found, and another's are not."""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.isolation import kernel_objects

CELL = "c-0123456789ab"
UIDS = range(1000, 1100)


def test_a_loop_device_over_the_cells_file(tmp_path: Path) -> None:
    """By the path of its backing file."""
    for name, backing in (("loop0", "/somebody/elses"), ("loop1", f"/store/cells/{CELL}/disk\n")):
        (tmp_path / "block" / name / "loop").mkdir(parents=True)
        (tmp_path / "block" / name / "loop/backing_file").write_text(backing)
    assert list(kernel_objects.loop_devices(CELL, sys=tmp_path)) == [
        f"loop device loop1 over /store/cells/{CELL}/disk"
    ]


def test_a_loop_device_over_any_file_of_the_store(tmp_path: Path) -> None:
    """Whosever it is; beside the store is not in it, and a device without a file is no finding."""
    for name, backing in (
        ("loop0", "/store2/disk"),
        ("loop1", "/store/images/disk (deleted)\n"),
        ("loop2", ""),
    ):
        (tmp_path / "block" / name / "loop").mkdir(parents=True)
        (tmp_path / "block" / name / "loop/backing_file").write_text(backing)
    (tmp_path / "block/loop3").mkdir()
    (tmp_path / "block/sda").mkdir()
    found = list(kernel_objects.loop_devices(CELL, Path("/store"), sys=tmp_path))
    assert found == ["loop device loop1 over /store/images/disk (deleted)"]


def test_what_is_not_there_to_look_at_is_an_error(tmp_path: Path) -> None:
    """No sysfs, no list of keys, or one covered by a device: nothing was seen, which is not that
    there is nothing."""
    with pytest.raises(FileNotFoundError):
        list(kernel_objects.loop_devices(CELL, sys=tmp_path))
    with pytest.raises(FileNotFoundError):
        list(kernel_objects.tap_devices(CELL, UIDS, sys=tmp_path))
    with pytest.raises(FileNotFoundError):
        list(kernel_objects.keyrings(UIDS, keys=tmp_path / "keys"))
    with pytest.raises(OSError, match="covered"):
        list(kernel_objects.keyrings(UIDS, keys=Path("/dev/null")))


def test_a_tap_device_of_the_cells(tmp_path: Path) -> None:
    """By its owner, or by the alias it bears; -1 is nobody's."""
    for name, owner, alias in (
        ("tap0", "-1", ""),
        ("tap1", "1099", ""),
        ("tap2", "5", CELL),
        ("lo", "", ""),
    ):
        (tmp_path / "class/net" / name).mkdir(parents=True)
        (tmp_path / "class/net" / name / "owner").write_text(f"{owner}\n")
        (tmp_path / "class/net" / name / "ifalias").write_text(alias)
    found = sorted(kernel_objects.tap_devices(CELL, UIDS, sys=tmp_path))
    assert found == ["network device tap1", "network device tap2"]


def test_keys_of_the_cells_uids(tmp_path: Path) -> None:
    """By the uid in the kernel's list; lines that are none are passed over."""
    keys = tmp_path / "keys"
    keys.write_text(
        "0158d361 I-- 1 perm 1f0b0000 0 0 keyring a\n0a I-- 1 perm 3f 1005 0 user b\nnonsense\n"
    )
    assert list(kernel_objects.keyrings(UIDS, keys=keys)) == ["key 0a of uid 1005"]


@given(st.binary(max_size=400))
def test_any_answer_is_read(reply: bytes) -> None:
    """Whatever is in it, reading ends."""
    for name in kernel_objects.parse_tables(reply):
        assert isinstance(name, str)
    with contextlib.suppress(OSError):
        assert kernel_objects.dump_ended(reply) in {True, False}


def test_a_refusal_is_not_an_empty_list() -> None:
    """The kernel's error in the answer is raised; its acknowledgement is none."""
    refused = struct.pack("=LHHLLi", 20, 2, 0, 1, 0, -1)
    with pytest.raises(PermissionError):
        kernel_objects.dump_ended(refused)
    assert kernel_objects.dump_ended(struct.pack("=LHHLLi", 20, 2, 0, 1, 0, 0))
    assert not kernel_objects.dump_ended(struct.pack("=LHHLL", 20, 0xA00, 2, 1, 0) + bytes(4))
    with pytest.raises(OSError, match="no sense"):
        kernel_objects.dump_ended(struct.pack("=LHHLL", 16, 2, 0, 1, 0))


def test_a_dump_of_tables() -> None:
    """Each message's name, up to the dump's end."""
    name = struct.pack("=HH", 4 + 5, 1) + b"mine\0" + b"\0\0\0"
    message = struct.pack("=LHHLL", 16 + 4 + len(name), 0xA00, 2, 1, 0) + bytes(4) + name
    done = struct.pack("=LHHLL", 20, 3, 2, 1, 0) + bytes(4)
    assert kernel_objects.parse_tables(message + message + done) == ["mine", "mine"]


@pytest.mark.root
@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed")
def test_a_table_of_the_cells() -> None:
    """A real one is found while it is there."""
    subprocess.run(["nft", "add", "table", "inet", CELL], check=True)
    try:
        assert list(kernel_objects.nft_tables(CELL)) == [f"nftables table {CELL}"]
    finally:
        subprocess.run(["nft", "delete", "table", "inet", CELL], check=True)
    assert list(kernel_objects.nft_tables(CELL)) == []
