"""The Debian repository, asked directly, and the control data of its packages."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
from tests.fakes.registries import ar_of, tar_of

from belljar.network.stand_ins import registries as deb
from belljar.network.stand_ins.files import StoredFile
from belljar.network.stand_ins.registries import MAX_MEMBER_BYTES

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
        ar_of([("control.tar", tar_of({"control": GOOD.replace(b"Version", b"Vers")}))]),
        ar_of([("control.tar", tar_of({"control": bytes(MAX_MEMBER_BYTES + 1)}))]),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes) -> None:
    """No archive, broken ones, and too large ones."""
    path = tmp_path / "a.deb"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        deb.read_control(StoredFile(name=path.name, path=path, size_bytes=0))
