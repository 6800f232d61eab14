"""Who trusts a range's authority: its own cells, and nothing and nobody else."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread
import certifi
import pytest
from tests.integration import test_ranges as ranges
from tests.machine import PATIENCE_S

from belljar.cell.cell import Cell
from belljar.cell.open import open_range
from belljar.cell.range import Range
from belljar.cell.task_data import BUNDLE

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.root, pytest.mark.anyio]
anyio_backend = ranges.anyio_backend


@pytest.mark.promise("2.5")
async def test_a_range_s_authority_is_trusted_in_its_own_cells_alone(
    home: Path, tmp_path: Path
) -> None:
    """No file in which this host looks for authorities holds it, nor the image's unpacked tree, nor
    a cell of another range, this one also when it is over."""
    policy = ranges.policy_of(tmp_path, ranges.SHOP)
    async with ranges.recorded("trust") as run, open_range(policy, run=run) as other:
        async with open_range(policy, run=run) as own:
            ours, theirs = (certificate_of(opened) for opened in (own, other))
            for opened, held, foreign in ((own, ours, theirs), (other, theirs, ours)):
                assert BUNDLE in await files_with(opened.cell, held)
                assert await files_with(opened.cell, foreign) == []
            assert await anyio.to_thread.run_sync(trusting, home, ours, theirs) == []
        assert await files_with(other.cell, ours) == []


def certificate_of(opened: Range) -> bytes:
    """The range's, DER."""
    assert opened.network is not None
    return ssl.PEM_cert_to_DER_cert(opened.network.certificate.decode())


async def files_with(cell: Cell, certificate: bytes) -> list[str]:
    """Those in a cell that hold a certificate as PEM."""
    argv = [
        "grep",
        "-rlsF",
        "--",
        mark_of(certificate).decode(),
        "/etc",
        "/usr",
        "/root",
        "/home",
        "/tmp",
    ]
    found = await cell.exec(argv, timeout_s=PATIENCE_S)
    return found.stdout.decode().split()


HOST_STORES = (
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates"),
    *("/usr/share/ca-certificates", "/usr/local/share/ca-certificates"),
)


def trusting(home: Path, *certificates: bytes) -> list[Path]:
    """The files of this host's trust stores and of the store's unpacked images that hold one of
    them, as PEM or DER."""
    stores = [ssl.get_default_verify_paths().openssl_capath, *HOST_STORES]
    roots = [*map(Path, stores), Path(certifi.where()).parent, home / "trees"]
    found = [
        file
        for root in roots
        for file in root.rglob("*")
        if file.is_file() and not file.is_symlink()
    ]
    files = {file: file.read_bytes() for file in found if file.stat().st_size < 1 << 20}
    known = re.findall(
        r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----", certifi.contents()
    )
    # What is there is found, here and in the image.
    places = (place for pem in known for place in holding(files, ssl.PEM_cert_to_DER_cert(pem)))
    assert next(places).is_file()
    assert any(place.is_relative_to(home) for place in places)
    return [file for certificate in certificates for file in holding(files, certificate)]


def holding(files: Mapping[Path, bytes], certificate: bytes) -> list[Path]:
    """Those that hold it, as PEM or DER."""
    marks = (certificate, mark_of(certificate))
    return [file for file, content in files.items() if any(mark in content for mark in marks)]


def mark_of(certificate: bytes) -> bytes:
    """A line of its PEM that no other's has: of its signature."""
    return ssl.DER_cert_to_PEM_cert(certificate).splitlines()[-3].encode()
