"""What a file says of its images before skopeo opens it: names and digests, read within bounds."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.images import docker_archive, entry, layer, oci_archive, sha256

from belljar.errors import PolicyError
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.origin import origin_of_archive, origin_of_layout, origin_of_service

LAYER = layer(entry("x", b"x"))
LIMITS = ImportLimits(max_bytes=1 << 20, max_document_bytes=10_000, max_entries=100)


def layout_with_index(directory: Path, *, holds: bytes | None = None) -> tuple[Path, str]:
    """An OCI layout whose only entry is an index, as a registry has it; `holds`: what lies under
    its digest instead."""
    directory.mkdir()
    inner = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
    with tarfile.open(oci_archive(directory.with_suffix(".tar"), [LAYER])) as archive:
        archive.extractall(directory, filter="data")
    blob = directory / "blobs/sha256" / sha256(inner).removeprefix("sha256:")
    blob.write_bytes(inner if holds is None else holds)
    described = {
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": sha256(inner),
        "size": len(inner),
    }
    (directory / "index.json").write_text(
        json.dumps({"schemaVersion": 2, "manifests": [described]})
    )
    return directory, sha256(inner)


def test_the_digest_of_a_nested_index_is_known(tmp_path: Path) -> None:
    """It is the one that a registry has the image under; if its bytes are others, the layout is
    refused."""
    layout, digest = layout_with_index(tmp_path / "a")
    assert origin_of_layout(layout, "", LIMITS).digests == (digest,)
    layout, _ = layout_with_index(tmp_path / "b", holds=b"{}")
    with pytest.raises(LayerError):
        origin_of_layout(layout, "", LIMITS)


def test_a_layout_that_is_none_is_refused(tmp_path: Path) -> None:
    """No index, a link in its place, one that is too large, and one that is no object."""
    (tmp_path / "real.json").write_text("{}")
    for content in (None, "link", "x" * 20_000, "[]", "{"):
        index = tmp_path / "index.json"
        index.unlink(missing_ok=True)
        if content == "link":
            index.symlink_to("real.json")
        elif content is not None:
            index.write_text(content)
        with pytest.raises(LayerError):
            origin_of_layout(tmp_path, "", LIMITS)


def test_names_are_read_from_a_compressed_archive_too(tmp_path: Path) -> None:
    """And what can't be read has no names: skopeo says what is wrong with it."""
    archive = docker_archive(tmp_path / "a.tar", [LAYER], tags=(["one:1", "two", "Bad Name"],))
    assert origin_of_archive(archive, "", tmp_path, LIMITS).names == ("one:1", "two")
    (tmp_path / "a.tgz").write_bytes(gzip.compress(archive.read_bytes()))
    assert origin_of_archive(tmp_path / "a.tgz", "", tmp_path, LIMITS).names == ("one:1", "two")
    for content in (
        b"",
        b"no archive",
        b"BZh91",
        archive.read_bytes()[:700],
        gzip.compress(archive.read_bytes())[:50],
    ):
        (tmp_path / "broken").write_bytes(content)
        assert origin_of_archive(tmp_path / "broken", "", tmp_path, LIMITS).names == ()
    with pytest.raises(PolicyError):
        origin_of_archive(tmp_path, "", tmp_path, LIMITS)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(manifest=st.binary(max_size=200))
def test_any_manifest_in_an_archive_has_names_or_none(manifest: bytes, tmp_path: Path) -> None:
    """Bytes that are no JSON do no harm."""
    (tmp_path / "a.tar").write_bytes(layer(entry("manifest.json", manifest)))
    origin_of_archive(tmp_path / "a.tar", "", tmp_path, LIMITS)


@pytest.mark.parametrize(
    "text", ["docker://", "docker://A", "docker:/x", "docker-daemon:a b", "docker-daemon:--help"]
)
def test_what_can_be_no_name_is_asked_of_nobody(text: str, tmp_path: Path) -> None:
    """It is refused before any tool is started or any socket opened."""
    transport, _, rest = text.partition(":")
    with pytest.raises(PolicyError):
        origin_of_service(transport, rest, tmp_path, LIMITS)
