"""The repository that is made out of package files."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import lzma
import re
from pathlib import Path

import pytest
from tests.fakes.registries import make_deb

from belljar.network.stand_ins.debian import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Three packages and one broken one."""
    make_deb(
        tmp_path,
        "tool",
        "1:1.0-2",
        architecture="amd64",
        more="Filename: /etc/passwd\nSHA256: 00\nDepends: libtool-x\n",
    )
    make_deb(tmp_path, "libtool-x", "2.0")
    make_deb(tmp_path, "odd", "1", architecture="riscv64")
    (tmp_path / "broken.deb").write_bytes(b"")
    return Repository(tmp_path, 1_760_000_000)


def index(repository: Repository, name: str) -> bytes:
    """An index that must be there."""
    content = asyncio.run(repository.index(name))
    assert content is not None
    return content


def test_the_index_describes_the_files(repository: Repository, tmp_path: Path) -> None:
    """Place, size and digests are ours, whatever the control file says; each architecture has its
    own and those for all."""
    text = index(repository, "main/binary-amd64/Packages").decode()
    stanzas = {re.search(r"Package: (\S+)", part)[1]: part for part in text.split("\n\n")}  # type: ignore[index]
    assert set(stanzas) == {"tool", "libtool-x"}
    content = (tmp_path / "tool_1.0-2_amd64.deb").read_bytes()
    assert f"SHA256: {hashlib.sha256(content).hexdigest()}\n" in stanzas["tool"]
    assert "/etc/passwd" not in stanzas["tool"]
    assert stanzas["tool"].count("SHA256:") == 1
    assert "Filename: pool/main/libt/libtool-x/libtool-x_2.0_all.deb" in stanzas["libtool-x"]
    found = asyncio.run(repository.pool_file("pool/main/t/tool/tool_1.0-2_amd64.deb"))
    assert found is not None
    assert found[0].path.read_bytes() == content
    assert (
        asyncio.run(repository.pool_file("pool/main/t/tool/../tool/tool_1.0-2_amd64.deb")) is None
    )


def test_the_release_file_names_every_index_by_its_digest(repository: Repository) -> None:
    """Of any suite; by hash too; the packed forms hold the same."""
    release = asyncio.run(repository.release("bookworm"))
    assert release is not None
    assert "Suite: bookworm\nCodename: bookworm\n" in release
    assert "Architectures: amd64 arm64 riscv64\n" in release
    entries = re.findall(r"^ ([0-9a-f]{64}) (\d+) (\S+)$", release, re.MULTILINE)
    assert len(entries) == 7 * 3 * 3
    for digest, size, name in entries:
        content = index(repository, name)
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (digest, int(size))
        assert index(repository, f"{name.rpartition('/')[0]}/by-hash/SHA256/{digest}") == content
    plain = index(repository, "main/binary-amd64/Packages")
    assert gzip.decompress(index(repository, "main/binary-amd64/Packages.gz")) == plain
    assert lzma.decompress(index(repository, "main/binary-amd64/Packages.xz")) == plain


def test_a_suites_name_is_checked(repository: Repository) -> None:
    """It becomes a line of the Release file, so no line end and nothing odd may be in it; and
    asking for many fills no memory."""
    for name in ("a\nOrigin: x", "../x", "a b", "x" * 80, "-x"):
        assert asyncio.run(repository.release(name)) is None
    made = {f"suite-{n}": asyncio.run(repository.release(f"suite-{n}")) for n in range(300)}
    kept = [name for name in made if asyncio.run(repository.release(name)) is made[name]]
    assert len(kept) == 100


def test_the_date_is_in_the_past(repository: Repository) -> None:
    """A day before the range's clock, or apt would refuse it as from the future."""
    assert "Date: Wed, 08 Oct 2025 08:53:20 UTC" in str(asyncio.run(repository.release("stable")))
