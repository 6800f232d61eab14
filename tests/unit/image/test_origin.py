"""What a file says of its images: names, digests and parts, read within bounds."""

from __future__ import annotations

import gzip
import json
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.images import ARCH, docker_archive, entry, layer, oci_archive, sha256, symlink

from belljar.errors import PolicyError
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.oci import import_image
from belljar.image.origin import (
    ImageParts,
    files_in,
    files_of_archive,
    image_in_archive,
    image_in_layout,
    instance_of,
    is_index,
    names_of_archive,
)
from belljar.policy.reference import parse_reference

LAYER = layer(entry("x", b"x"))
DIGEST = "sha256:" + "1" * 64
LIMITS = ImportLimits(max_bytes=1 << 20, max_document_bytes=10_000, max_entries=100)


def layout_with_index(directory: Path, *, holds: bytes | None = None) -> tuple[Path, str, str]:
    """An OCI layout whose only entry is an index, as a registry has it; `holds`: what lies under
    its digest instead."""
    directory.mkdir()
    with tarfile.open(oci_archive(directory.with_suffix(".tar"), [LAYER])) as archive:
        archive.extractall(directory, filter="data")
    (manifest,) = json.loads((directory / "index.json").read_text())["manifests"]
    manifest["platform"] = {"os": "linux", "architecture": ARCH}
    inner = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
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
    return directory, sha256(inner), manifest["digest"]


def test_the_digest_of_a_nested_index_is_known(tmp_path: Path) -> None:
    """It is the one that a registry has the image under; if its bytes are others, the layout is
    refused."""
    layout, digest, manifest = layout_with_index(tmp_path / "a")
    found = image_in_layout(files_in(layout), "", layout, LIMITS)
    assert found.digests == (digest, manifest)
    layout, _, _ = layout_with_index(tmp_path / "b", holds=b"{}")
    with pytest.raises(LayerError):
        image_in_layout(files_in(layout), "", layout, LIMITS)


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
            image_in_layout(files_in(tmp_path), "", tmp_path, LIMITS)


def in_archive(path: Path, work: Path) -> ImageParts:
    """The only image of what `docker save` wrote."""
    with files_of_archive(path, work, LIMITS) as files:
        return image_in_archive(files, "", path, LIMITS)


@pytest.mark.promise("1.8")
def test_images_are_found_in_a_compressed_archive_too(tmp_path: Path) -> None:
    """Names that are none are left out; what can't be read is refused."""
    archive = docker_archive(tmp_path / "a.tar", [LAYER], tags=(["one:1", "two", "Bad Name"],))
    assert in_archive(archive, tmp_path).names == ("one:1", "two")
    (tmp_path / "a.tgz").write_bytes(gzip.compress(archive.read_bytes()))
    assert in_archive(tmp_path / "a.tgz", tmp_path).names == ("one:1", "two")
    for content in (
        b"",
        b"no archive",
        b"BZh91",
        archive.read_bytes()[:700],
        gzip.compress(archive.read_bytes())[:50],
    ):
        (tmp_path / "broken").write_bytes(content)
        with pytest.raises(LayerError):
            in_archive(tmp_path / "broken", tmp_path)


def test_a_layer_that_is_a_link_to_another_is_that_one(tmp_path: Path) -> None:
    """`docker save` wrote a layer that occurs twice so. A link leads to no file outside."""
    (tmp_path / "secret").write_text("secret")
    archive = tmp_path / "a.tar"
    links = (symlink("b/layer.tar", "../a/layer.tar"), symlink("c", f"{tmp_path}/secret"))
    archive.write_bytes(layer(entry("a/layer.tar", b"one"), *links))
    with files_of_archive(archive, tmp_path, LIMITS) as files:
        assert files("b/layer.tar").read_bytes() == b"one"
        for name in ("c", "../secret", "secret"):
            with pytest.raises(LayerError):
                files(name)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    manifest=st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda *parts: json.dumps(
                [dict(zip(("Config", "Layers", "RepoTags"), parts, strict=True))]
            ).encode(),
            *[st.one_of(st.none(), st.text(max_size=5), st.lists(st.text(max_size=5)))] * 3,
        ),
    )
)
def test_any_manifest_in_an_archive_is_read_or_refused(manifest: bytes, tmp_path: Path) -> None:
    """Bytes that are no manifest do no harm."""
    (tmp_path / "a.tar").write_bytes(layer(entry("manifest.json", manifest)))
    with suppress(LayerError, PolicyError):
        in_archive(tmp_path / "a.tar", tmp_path)


@pytest.mark.parametrize(
    "change", [{"layers": 5}, {"layers": None}, {"config": "x"}, {"layers": [1]}]
)
def test_a_manifest_that_is_none_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    """Its parts have the kinds that they must have."""
    archive = oci_archive(
        tmp_path / "a.tar", [LAYER], tweak=lambda made, _config: made.update(change)
    )
    with files_of_archive(archive, tmp_path, LIMITS) as files, pytest.raises(LayerError):
        image_in_layout(files, "", archive, LIMITS)


@pytest.mark.parametrize(
    "ref",
    [
        *("docker://", "docker://A", "docker:/x", "docker-daemon:a b", "docker-daemon:--help"),
        *("dir:/etc", "busybox", "oci:", "oci-archive:/no-such-file.tar"),
    ],
)
def test_what_can_be_no_name_is_asked_of_nobody(
    ref: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It, a transport that is none and a file that is missing are refused before any daemon is
    asked or any image copied."""
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(PolicyError):
        import_image(tmp_path / "home", ref)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(("manifests", "annotations", "RepoTags", "digest", "x")),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


def test_the_manifest_for_this_machine_is_chosen() -> None:
    """Attestations and other processors beside it are passed over; none for it is an error that
    lists what there is."""
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": DIGEST,
        "platform": {"os": "linux", "architecture": "arm64"},
    }
    attestation = entry | {"platform": {"os": "unknown", "architecture": "unknown"}}
    assert instance_of({"manifests": [attestation, entry]}, "arm64") == DIGEST
    with pytest.raises(LayerError, match="linux/arm64, unknown/unknown"):
        instance_of({"manifests": [attestation, entry]}, "amd64")
    with pytest.raises(LayerError):
        instance_of({"manifests": [entry | {"digest": "../../etc"}]}, "arm64")


@pytest.mark.promise("1.8")
@given(json_values)
def test_any_document_has_names_or_none(document: object) -> None:
    """No document does harm; what is taken for a name is one in its normal form, at most two for
    each that stands there."""
    found = list(names_of_archive(document))
    if isinstance(document, dict):
        is_index(document)
        is_index(document | {"mediaType": []})
    for name in (name for names in found for name in names):
        assert parse_reference(name).familiar == name


def test_an_archive_names_at_most_so_many() -> None:
    """A thousand tags are cut to 32, and to their names without Podman's `localhost/`."""
    (names,) = names_of_archive([{"RepoTags": [f"localhost/x:{number}" for number in range(1000)]}])
    assert len(names) == 64
    assert names[:2] == ("x:0", "localhost/x:0")
