"""Kernel objects that could be left: loop and tap devices, nftables tables, keyrings.

Belljar makes none of them. Looks change nothing; one that can't be made raises `OSError`.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from belljar.units import printable

_SYS: Final = Path("/sys")
_KEYS: Final = Path("/proc/keys")
_NETLINK_NETFILTER: Final = 12
_GET_TABLES: Final = 10 << 8 | 1  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETTABLE
_REQUEST_DUMP: Final = 0x1 | 0x300
_TABLE_NAME: Final = 1
_ERROR: Final = 2
_DONE: Final = 3
_HEADER: Final = struct.Struct("=LHHLL")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ERRNO: Final = struct.Struct("=i")
_MAX_ERRNO: Final = 4096
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO)
_NFGEN_BYTES: Final = 4
_MAX_REPLY_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 0.2


def unseen(why: str) -> OSError:
    """For looks that failed without a kernel error."""
    return OSError(errno.ENODATA, why)


def loop_devices(cell_id: str, store: Path | None = None, *, sys: Path = _SYS) -> Iterator[str]:
    """Loop devices over the cell's or the store's files."""
    for device in (sys / "block").iterdir():
        backing = (
            _read(device / "loop/backing_file").strip() if device.name.startswith("loop") else ""
        )
        if cell_id in backing or (store is not None and Path(backing).is_relative_to(store)):
            yield f"loop device {device.name} over {printable(backing, max_chars=200)}"


def tap_devices(cell_id: str, uids: range, *, sys: Path = _SYS) -> Iterator[str]:
    """The cell's tap and tun devices in this namespace."""
    for device in (sys / "class/net").iterdir():
        owner = _read(device / "owner").strip()
        if (owner.isdecimal() and int(owner) in uids) or cell_id in _read(device / "ifalias"):
            yield f"network device {printable(device.name, max_chars=64)}"


def keyrings(uids: range, *, keys: Path = _KEYS) -> Iterator[str]:
    """Visible keys of the cell's uids."""
    if not stat.S_ISREG(keys.stat().st_mode):
        raise unseen(f"{keys} is covered here")
    for line in keys.read_text(errors="replace").splitlines():
        fields = line.split()
        if len(fields) > 6 and fields[5].isdecimal() and int(fields[5]) in uids:
            yield f"key {fields[0]} of uid {fields[5]}"


def nft_tables(cell_id: str) -> Iterator[str]:
    """nftables tables with its id in this namespace."""
    for name in parse_tables(_dump_tables()):
        if cell_id in name:
            yield f"nftables table {printable(name, max_chars=100)}"


def parse_tables(reply: bytes) -> list[str]:
    """Names in a dump, up to unreadable data. Pure."""
    names: list[str] = []
    at = 0
    while at + _HEADER.size <= len(reply):
        length, kind, *_ = _HEADER.unpack_from(reply, at)
        if length < _HEADER.size or kind in {_DONE, _ERROR}:
            break
        names.extend(_names_in(reply[at + _HEADER.size + _NFGEN_BYTES : at + length]))
        at += (length + 3) & ~3
    return names


def _names_in(attributes: bytes) -> Iterator[str]:
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if length < _ATTRIBUTE.size:
            return
        if kind == _TABLE_NAME:
            yield (
                attributes[at + _ATTRIBUTE.size : at + length]
                .rstrip(b"\0")
                .decode("utf-8", "replace")
            )
        at += (length + 3) & ~3


def _dump_tables() -> bytes:
    request = _HEADER.pack(_HEADER.size + _NFGEN_BYTES, _GET_TABLES, _REQUEST_DUMP, 1, 0) + bytes(
        _NFGEN_BYTES
    )
    reply = b""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(request)
        while len(reply) < _MAX_REPLY_BYTES:
            part = kernel.recv(1 << 16)
            reply += part
            if dump_ended(part):
                return reply
    raise unseen("the kernel's list of tables is too long")


def dump_ended(part: bytes) -> bool:
    """Pure. Raises `OSError`: the kernel's error, or no answer."""
    at, kind = 0, 0
    while at + _HEADER.size <= len(part):
        length, kind, *_ = _HEADER.unpack_from(part, at)
        if length < _HEADER.size:
            raise unseen("the kernel's answer makes no sense")
        if kind == _ERROR:
            payload = part[at + _HEADER.size : at + length]
            if len(payload) < _ERRNO.size:
                raise unseen("the kernel's answer makes no sense")
            (code,) = _ERRNO.unpack_from(payload)
            if code:
                raise OSError(
                    -code, os.strerror(-code) if 0 < -code < _MAX_ERRNO else "unknown error"
                )
        at += (length + 3) & ~3
    return kind in {_DONE, _ERROR}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as exc:
        if exc.errno in _NOT_THERE:
            return ""
        raise
