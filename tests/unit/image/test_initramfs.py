"""The cpio archive that the guest boots from: each microVM of the other tests shows that it boots."""

from __future__ import annotations

import gzip
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.image.kernel import build_initramfs

ELF = b"\x7fELF"


def unpack(image: bytes) -> dict[str, tuple[int, bytes]]:
    """Mode and content by name; a name comes once. A reader of the newc format, written from its
    description and not from the writer."""
    archive, at = gzip.decompress(image), 0
    found: dict[str, tuple[int, bytes]] = {}
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name_end = at + 110 + fields[11]
        name = archive[at + 110 : name_end - 1].decode()
        start = -(-name_end // 4) * 4
        if name == "TRAILER!!!":
            assert archive[start:].strip(b"\0") == b""
            return found
        assert name not in found
        found[name] = fields[1], archive[start : start + fields[6]]
        at = start + -(-fields[6] // 4) * 4


def test_probe_program_is_there_or_not() -> None:
    """The probe program is a file beside `/init`, to be run and not read by others, byte for byte;
    without one nothing is in its place."""
    probe = unpack(build_initramfs(ELF, [], probe=ELF + b"probe"))["p"]
    assert probe == (0o100711, ELF + b"probe")
    assert "p" not in unpack(build_initramfs(ELF, []))
    for modules, program in (([], b"#!/bin/sh"), ([("squashfs", b"\xfd7zXZ\0")], ELF)):
        with pytest.raises(ValueError, match="not an ELF"):
            build_initramfs(ELF, modules, probe=program)


@given(st.binary(max_size=300), st.lists(st.binary(max_size=50), max_size=5))
def test_same_input_same_bytes(agent: bytes, modules: list[bytes]) -> None:
    """Nothing of the time or the host goes in, and what goes in comes out."""
    named = [(f"m{i}", ELF + contents) for i, contents in enumerate(modules)]
    image = build_initramfs(ELF + agent, named)
    assert image == build_initramfs(ELF + agent, named)
    assert struct.unpack_from("<I", image, 4) == (0,)
    assert unpack(image)["init"] == (0o100755, ELF + agent)
