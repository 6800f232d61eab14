"""What a file says of its images: names, digests and parts, read within bounds."""

from __future__ import annotations

import gzip
import json
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.images import (
    ARCH,
    blob_of,
    docker_archive,
    entry,
    layer,
    oci_archive,
    sha256,
    symlink,
)

from belljar.errors import PolicyError
from belljar.image import origin
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.oci import import_image

LAYER = layer(entry("x", b"x"))
DIGEST = "sha256:" + "1" * 64
LIMITS = ImportLimits(max_bytes=1 << 20, max_document_bytes=10_000, max_entries=100)


def layout_with_index(directory: Path, *, holds: bytes | None = None) -> tuple[Path, str, str]:
    """An OCI layout whose only entry is an index; `holds`: what lies under its digest instead."""
    directory.mkdir()
    with tarfile.open(oci_archive(directory.with_suffix(".tar"), [LAYER])) as archive:
        archive.extractall(directory, filter="data")
    (manifest,) = json.loads((directory / "index.json").read_text())["manifests"]
    manifest["platform"] = {"os": "linux", "architecture": ARCH}
    inner = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
    blob = directory / "blobs/sha256" / sha256(inner).removeprefix("sha256:")
    blob.write_bytes(inner if holds is None else holds)
    described = blob_of("application/vnd.oci.image.index.v1+json", inner)
    index = {"schemaVersion": 2, "manifests": [described]}
    (directory / "index.json").write_text(json.dumps(index))
    return directory, sha256(inner), manifest["digest"]


def test_the_digest_of_a_nested_index_is_known(tmp_path: Path) -> None:
    """A registry has the image under it; other bytes, or too many of them, are refused."""
    layout, digest, manifest = layout_with_index(tmp_path / "a")
    assert origin.image_in_layout(layout.joinpath, LIMITS).digests == (digest, manifest)
    refused = [layout_with_index(tmp_path / "b", holds=b"{}")[0]]
    for number, content in enumerate(("x" * 20_000, "[]", "{")):
        (directory := tmp_path / str(number)).mkdir()
        (directory / "index.json").write_text(content)
        refused.append(directory)
    for layout in refused:
        with pytest.raises(LayerError):
            origin.image_in_layout(layout.joinpath, LIMITS)


def in_archive(path: Path, work: Path) -> origin.ImageParts:
    with origin.files_of_archive(path, work, LIMITS) as files:
        return origin.image_in_archive(files, LIMITS)


@pytest.mark.promise("1.8")
def test_images_are_found_in_a_compressed_archive_too(tmp_path: Path) -> None:
    """Names that are none are left out; what can't be read is refused."""
    archive = docker_archive(tmp_path / "a.tar", [LAYER], tags=(["one:1", "two", "Bad Name"],))
    plain, at = archive.read_bytes(), tmp_path / "b"
    for content in (plain, packed := gzip.compress(plain)):
        at.write_bytes(content)
        assert in_archive(at, tmp_path).names == ("one:1", "two")
    for content in (b"", b"no archive", plain[:700], packed[:50]):
        at.write_bytes(content)
        with pytest.raises(LayerError):
            in_archive(at, tmp_path)


def test_a_layer_that_is_a_link_to_another_is_that_one(tmp_path: Path) -> None:
    """`docker save` wrote a layer that occurs twice so. A link leads to no file outside."""
    (tmp_path / "secret").write_text("secret")
    archive = tmp_path / "a.tar"
    links = (symlink("b/layer.tar", "../a/layer.tar"), symlink("c", f"{tmp_path}/secret"))
    archive.write_bytes(layer(entry("a/layer.tar", b"one"), *links))
    with origin.files_of_archive(archive, tmp_path, LIMITS) as files:
        assert files("b/layer.tar").read_bytes() == b"one"
        for name in ("c", "../secret", "secret"):
            with pytest.raises(LayerError):
                files(name)


_PART = st.one_of(st.none(), st.text(max_size=5), st.lists(st.text(max_size=5)))
_LISTED = st.fixed_dictionaries({"Config": _PART, "Layers": _PART, "RepoTags": _PART})


@given(st.binary(max_size=200) | _LISTED.map(lambda made: json.dumps([made]).encode()))
def test_any_manifest_in_an_archive_is_read_or_refused(tmp_path: Path, manifest: bytes) -> None:
    """Bytes that are no manifest do no harm."""
    (tmp_path / "a.tar").write_bytes(layer(entry("manifest.json", manifest)))
    with suppress(LayerError, PolicyError):
        in_archive(tmp_path / "a.tar", tmp_path)


@pytest.mark.promise("1.8")
def test_a_layer_listed_many_times_counts_each_time(tmp_path: Path) -> None:
    """One whose compression is larger than its content: its archive may be tiny."""

    def padded(content: bytes) -> bytes:
        packed = gzip.compress(content)
        return packed[:3] + b"\x08" + packed[4:10] + b"a" * 40_000 + b"\0" + packed[10:]

    archive = oci_archive(tmp_path / "a.tar", [LAYER] * 3, compress=padded)
    limits = ImportLimits(max_bytes=100_000)
    assert archive.stat().st_size < limits.max_bytes
    with pytest.raises(PolicyError, match="all its layers are larger"):
        import_image(tmp_path / "home", f"oci-archive:{archive}", name="a", limits=limits)


def test_what_can_be_no_name_is_asked_of_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No daemon is asked and no image copied."""
    monkeypatch.setattr("subprocess.Popen", None)
    for ref in ("docker://A", "docker:/x", "docker-daemon:--help", "dir:/etc", "busybox", "oci:"):
        with pytest.raises(PolicyError):
            import_image(tmp_path / "home", ref)


def test_the_manifest_for_this_machine_is_chosen() -> None:
    """Attestations are passed over; none for it is an error."""
    ours = blob_of("application/vnd.oci.image.manifest.v1+json", b"")
    ours |= {"digest": DIGEST, "platform": {"os": "linux", "architecture": "arm64"}}
    attestation = ours | {"platform": {"os": "unknown", "architecture": "unknown"}}
    assert origin.instance_of({"manifests": [attestation, ours]}, "arm64") == DIGEST
    with pytest.raises(LayerError, match="not made for"):
        origin.instance_of({"manifests": [attestation, ours]}, "amd64")
    with pytest.raises(LayerError):
        origin.instance_of({"manifests": [ours | {"digest": "../../etc"}]}, "arm64")


@pytest.mark.promise("1.8")
def test_the_names_of_an_archive_are_bounded(tmp_path: Path) -> None:
    """At most two for each of 32 tags: Podman's `localhost/` is left out."""
    many = [f"localhost/x:{number}" for number in range(300)]
    docker_archive(tmp_path / "a.tar", [LAYER], tags=(many,))
    names = in_archive(tmp_path / "a.tar", tmp_path).names
    assert (len(names), names[:2]) == (64, ("x:0", "localhost/x:0"))
