"""The documents of an image: which manifest is for this machine, what an archive calls its images.

Names are references or left out; callers check the digests.

Source: image-spec v1.1 (image-index.md, annotations.md) and the layout of `docker save`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from belljar.image.layers.limits import ImportLimits, LayerError
from belljar.policy.reference import parse_reference
from belljar.units import printable

MANIFEST_TYPES: Final = frozenset(
    {
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    }
)
INDEX_TYPES: Final = frozenset(
    {
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    }
)
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_MAX_NAMES: Final = 32
_NAME_ANNOTATIONS: Final = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_BUILT_HERE: Final = "localhost/"
"""Podman's and buildah's registry for what was built without one."""


def read_bounded(path: Path, limits: ImportLimits) -> bytes:
    """A document's bytes. Raises `LayerError` when it is missing, a link or too large."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > limits.max_document_bytes:
        raise LayerError(f"a document is missing or larger than {limits.max_document_bytes} bytes")
    return path.read_bytes()


def parse_document(raw: bytes) -> Mapping[str, Any]:
    """A JSON object. Raises `LayerError`."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise LayerError("a document is not JSON that can be read") from error
    if not isinstance(document, dict):
        raise LayerError("a document is not a JSON object")
    return document


def is_index(document: Mapping[str, Any]) -> bool:
    """Whether it lists manifests of several platforms."""
    return document.get("mediaType") in INDEX_TYPES or (
        "mediaType" not in document and "manifests" in document
    )


def instance_of(index: Mapping[str, Any], arch: str) -> str:
    """The digest of the manifest for `linux/arch`. Raises `LayerError` when there is none."""
    offered: list[str] = []
    for entry in _entries(index):
        platform = entry.get("platform")
        platform = platform if isinstance(platform, dict) else {}
        stated = (str(platform.get("os")), str(platform.get("architecture")))
        digest = str(entry.get("digest"))
        if (
            stated == ("linux", arch)
            and entry.get("mediaType") in MANIFEST_TYPES
            and DIGEST.fullmatch(digest)
        ):
            return digest
        offered.append("/".join(stated))
    listed = printable(", ".join(sorted(set(offered))) or "nothing", max_chars=200)
    raise LayerError(f"it is made for {listed}; guests here are linux/{arch}")


def names_of_index(index: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """The names of each image in an OCI layout's `index.json`; one digest is one image."""
    images: dict[str, list[str]] = {}
    for entry in _entries(index):
        annotations = entry.get("annotations")
        stated = annotations if isinstance(annotations, dict) else {}
        written = [
            str(stated[key]) for key in _NAME_ANNOTATIONS if isinstance(stated.get(key), str)
        ]
        # A ref.name without a registry, path or tag is the tag alone.
        whole = [name for name in written if "/" in name or ":" in name]
        images.setdefault(str(entry.get("digest")), []).extend(whole[:1])
    return tuple(_names(each) for each in images.values())


def names_of_archive(document: object) -> tuple[tuple[str, ...], ...]:
    """The names of each image in the `manifest.json` of what `docker save` wrote."""
    images = document if isinstance(document, list) else []
    tags = [image.get("RepoTags") if isinstance(image, dict) else None for image in images]
    return tuple(
        _names([name for name in each if isinstance(name, str)] if isinstance(each, list) else [])
        for each in tags
    )


def _names(written: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for text in written[:_MAX_NAMES] for name in _both(text)))


def _both(text: str) -> Iterator[str]:
    """The name in its normal form, and without Podman's `localhost/`."""
    for name in dict.fromkeys((text.removeprefix(_BUILT_HERE), text)):
        try:
            reference = parse_reference(name)
        except ValueError:
            continue
        if not reference.digest:
            yield reference.familiar


def _entries(index: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = index.get("manifests")
    return (
        [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )
