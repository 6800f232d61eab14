"""An image at its source: its manifest or configuration, its names and its digests there.

Tags change, so a registry is asked for the digest that is then fetched. Nothing that
stands in a file is believed: callers check digests. No name in an archive becomes a path.
Source: image-spec v1.1; the layout of `docker save`.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass
from belljar.errors import PolicyError
from belljar.image.config import debian_arch
from belljar.image.layers import MAX_TEXT_BYTES, ImportLimits, LayerError
from belljar.image.layers.blob import LayerBlob, is_plain, open_layer
from belljar.image.layers.headers import ImageEntryKind, read_entries
from belljar.policy.reference import Reference, parse_reference
from belljar.units import format_size, printable

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
# More names than a person gives an image would fill the store's index.
_MAX_NAMES: Final = 32
# containerd's is a whole name; OCI's is often a tag alone.
_NAME_ANNOTATIONS: Final = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
# Podman's and buildah's registry for what was built without one.
_BUILT_HERE: Final = "localhost/"
# Without encrypted layers, and those whose bytes are not in the image (`foreign`).
_LAYER_TYPES: Final = re.compile(
    r"application/vnd\.(?:oci\.image\.layer\.v1\.tar(?:\+(?:gzip|zstd))?"
    r"|docker\.image\.rootfs\.diff\.tar(?:\.(?:gzip|zstd))?)"
)
# No other name is opened: none of these leads out of the directory.
_BLOB: Final = re.compile(r"(?:blobs/sha256/)?[0-9a-f]{64}|index\.json|manifest\.json")
# Gives a file of an image by its name, until the next is asked for. Raises `LayerError`.
Files: TypeAlias = Callable[[str], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageParts:
    """An image's parts by their names in `files`, and the SHA-256 that each must have.

    Without a stated digest it is "". `digests`: of an index, of the manifest.
    """

    files: Files
    config: tuple[str, str]
    layers: tuple[tuple[str, str], ...]
    names: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()


def files_in(directory: Path) -> Files:
    """Return the files of a layout, or of skopeo's copy. No link is followed."""

    def find(name: str) -> Path:
        path = directory / name
        if not _BLOB.fullmatch(name) or path.is_symlink() or not path.is_file():
            raise LayerError(f"its file {printable(name, max_chars=100)!r} is missing")
        return path

    return find


@contextmanager
def files_of_archive(archive: Path, work: Path, limits: ImportLimits) -> Iterator[Files]:
    """Give the files of a tar archive one at a time, below `work` under a name of its own.

    Links between them are followed: `docker save` wrote a layer that occurs twice as one.
    """
    opened = (
        LayerBlob(archive.open("rb"), archive.stat().st_size, "")
        if is_plain(archive)
        else open_layer(archive, None, max_bytes=limits.max_bytes, scratch=work)
    )
    with closing(opened):
        found, links, text_bytes = dict[str, tuple[int, int]](), dict[str, str](), 0
        for entry in read_entries(opened.pread, opened.size_bytes, limits.max_entries):
            name = os.fsdecode(b"/".join(entry.path))
            text_bytes += len(name) + len(entry.target)
            if text_bytes > MAX_TEXT_BYTES:
                raise LayerError("all its paths together are too long")
            if entry.kind is ImageEntryKind.FILE:
                found[name] = (entry.offset, entry.size_bytes)
            elif entry.kind is ImageEntryKind.SYMLINK:
                target = posixpath.join(posixpath.dirname(name), os.fsdecode(entry.target))
                links[name] = posixpath.normpath(target)

        def find(name: str) -> Path:
            offset, size_bytes = found.get(links.get(name, name), (0, -1))
            if size_bytes < 0:
                raise LayerError(f"its file {printable(name, max_chars=100)!r} is missing")
            if size_bytes > limits.max_bytes:
                what = f"it is larger than {format_size(limits.max_bytes)}"
                raise LayerError(what, hint="--max-size allows more")
            with (work / "file").open("wb") as file:
                file.writelines(opened.chunks(offset, size_bytes))
            return work / "file"

        yield find


def read_bounded(path: Path, limits: ImportLimits) -> bytes:
    """Raises `LayerError` when missing, a link or too large."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > limits.max_document_bytes:
        raise LayerError(f"a document is missing or larger than {limits.max_document_bytes} bytes")
    return path.read_bytes()


def parse_document(raw: bytes) -> Mapping[str, Any]:
    """A JSON object. Raises `LayerError`."""
    document = _parsed(raw)
    if not isinstance(document, dict):
        raise LayerError("a document is not a JSON object")
    return document


def _parsed(raw: bytes) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise LayerError("a document is not JSON that can be read") from error


def is_index(document: Mapping[str, Any]) -> bool:
    """Return whether it lists manifests of several platforms."""
    return str(document.get("mediaType")) in INDEX_TYPES or (
        "mediaType" not in document and "manifests" in document
    )


def instance_of(index: Mapping[str, Any], arch: str) -> str:
    """The digest of the manifest for `linux/arch`. Raises `LayerError`."""
    offered: list[str] = []
    for entry in _entries(index):
        platform = entry.get("platform")
        platform = platform if isinstance(platform, dict) else {}
        stated = (str(platform.get("os")), str(platform.get("architecture")))
        digest = str(entry.get("digest"))
        is_manifest = str(entry.get("mediaType")) in MANIFEST_TYPES and DIGEST.fullmatch(digest)
        if is_manifest and stated == ("linux", arch):
            return digest
        offered.append("/".join(stated))
    listed = printable(", ".join(sorted(set(offered))) or "nothing", max_chars=200)
    raise LayerError(f"it is made for {listed}; guests here are linux/{arch}")


def _names(written: list[Any]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in map(str, written[:_MAX_NAMES]):
        for name in (text.removeprefix(_BUILT_HERE), text):
            with suppress(ValueError):
                reference = parse_reference(name)
                if not reference.digest:
                    found[reference.familiar] = None
    return tuple(found)


def _entries(index: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = index.get("manifests")
    listed = entries if isinstance(entries, list) else []
    return [entry for entry in listed if isinstance(entry, dict)]


def reference_of(text: str) -> Reference:
    """Return a name's parts. Raises `PolicyError`."""
    try:
        return parse_reference(text)
    except ValueError as error:
        raise PolicyError(str(error), where=printable(text)) from error


def image_in_archive(files: Files, limits: ImportLimits) -> ImageParts:
    """Find the image of what `docker save` wrote. Raises `LayerError`."""
    listed = _parsed(read_bounded(files("manifest.json"), limits))
    image = listed[0] if isinstance(listed, list) and len(listed) == 1 else None
    if not isinstance(image, dict):
        raise _not_one(len(listed) if isinstance(listed, list) else 0)
    tags, layers, config = (image.get(name) for name in ("RepoTags", "Layers", "Config"))
    if not isinstance(layers, list) or not all(isinstance(each, str) for each in (config, *layers)):
        raise LayerError("a document is broken: manifest.json")
    plain = tuple((posixpath.normpath(name), "") for name in (config, *layers))
    names = _names(tags if isinstance(tags, list) else [])
    return ImageParts(files=files, config=plain[0], layers=plain[1:], names=names)


def image_in_layout(files: Files, limits: ImportLimits) -> ImageParts:
    """Find the image of an OCI layout. Raises `LayerError`."""
    entries = _entries(parse_document(read_bounded(files("index.json"), limits)))
    found = {str(entry.get("digest")): is_index(entry) for entry in entries}
    if len(found) != 1:
        raise _not_one(len(found))
    ((digest, has_index),) = found.items()
    marks = [each for entry in entries if isinstance(each := entry.get("annotations"), dict)]
    written = [str(each.get(key, "")) for each in marks for key in _NAME_ANNOTATIONS]
    # A ref.name without a registry, path or tag is the tag alone.
    names = _names([each for each in written if "/" in each or ":" in each][:1])
    digests: tuple[str, ...] = ()
    if has_index:  # a nested index: a registry has the image under its digest
        nested = read_bounded(files(f"blobs/sha256/{_hex(digest)}"), limits)
        if hashlib.sha256(nested).hexdigest() != _hex(digest):
            raise LayerError("a document's bytes are not those of its digest")
        digests = (digest,)
        digest = instance_of(parse_document(nested), debian_arch())
    file = f"blobs/sha256/{_hex(digest)}"
    return image_of_manifest(
        files, file, limits, wanted=digest, names=names, digests=digests, place="blobs/sha256/"
    )


def _not_one(count: int) -> LayerError:
    return LayerError(f"it holds {count} images", hint="save one image alone into a file")


def image_of_manifest(
    files: Files,
    name: str,
    limits: ImportLimits,
    *,
    wanted: str,
    names: tuple[str, ...],
    digests: tuple[str, ...],
    place: str = "",
) -> ImageParts:
    """Read the manifest `name`, whose digest must be `wanted`. Raises `LayerError`."""
    raw = read_bounded(files(name), limits)
    if f"sha256:{hashlib.sha256(raw).hexdigest()}" != wanted:
        raise LayerError("its manifest is not the one of its digest")
    manifest = parse_document(raw)
    if str(manifest.get("mediaType", next(iter(MANIFEST_TYPES)))) not in MANIFEST_TYPES:
        raise LayerError("its manifest is of a type that isn't taken")
    layers = manifest.get("layers")
    described = [manifest.get("config"), *(layers if isinstance(layers, list) else [None])]
    if not all(isinstance(each, dict) for each in described):
        raise LayerError("a document is broken: its manifest")
    for number, layer in enumerate(described[1:], 1):
        if _LAYER_TYPES.fullmatch(kind := str(layer.get("mediaType"))) is None:
            raise LayerError(
                f"layer {number} is of the type {printable(kind)!r}, which isn't taken"
            )
    parts = [_hex(str(each.get("digest"))) for each in described]
    named = tuple((f"{place}{part}", part) for part in parts)
    return ImageParts(
        files=files,
        config=named[0],
        layers=named[1:],
        names=names,
        digests=tuple(dict.fromkeys((*digests, wanted))),
    )


def _hex(digest: str) -> str:
    """Return a digest's hex digits: nothing else of a document enters a path."""
    if DIGEST.fullmatch(digest) is None:
        raise LayerError("a digest is not a SHA-256")
    return digest.partition(":")[2]
