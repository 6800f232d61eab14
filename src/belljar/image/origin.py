"""An image at its source: the reference for skopeo, and the source's names and digests of it.

Tags change, so a registry is asked for the digest that is then fetched, a daemon for an id.
Callers check the digests. Source: image-spec v1.1; the layout of `docker save`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from belljar.errors import PolicyError
from belljar.image.daemon import DIGEST, DaemonImage, ask_daemons, daemon_hosts
from belljar.image.kernel import debian_arch
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.layers.blob import Layer, is_plain, open_layer
from belljar.image.layers.headers import EntryKind, read_entries
from belljar.image.tools import plain_env, run_tool, tool
from belljar.policy.reference import Reference, parse_reference
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
_MAX_NAMES: Final = 32
_NAME_ANNOTATIONS: Final = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
# Podman's and buildah's registry for what was built without one.
_BUILT_HERE: Final = "localhost/"


def read_bounded(path: Path, limits: ImportLimits) -> bytes:
    """Raises `LayerError` when missing, a link or too large."""
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
    """Return whether it lists manifests of several platforms."""
    return document.get("mediaType") in INDEX_TYPES or (
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
        is_manifest = entry.get("mediaType") in MANIFEST_TYPES and DIGEST.fullmatch(digest)
        if is_manifest and stated == ("linux", arch):
            return digest
        offered.append("/".join(stated))
    listed = printable(", ".join(sorted(set(offered))) or "nothing", max_chars=200)
    raise LayerError(f"it is made for {listed}; guests here are linux/{arch}")


def names_of_index(index: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Each image's names in an OCI `index.json`."""
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
    """Each image's names in the `manifest.json` of `docker save`."""
    images = document if isinstance(document, list) else []
    tags = [image.get("RepoTags") if isinstance(image, dict) else None for image in images]
    return tuple(
        _names([name for name in each if isinstance(name, str)] if isinstance(each, list) else [])
        for each in tags
    )


def _names(written: list[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in written[:_MAX_NAMES]:
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


_LOOPBACK: Final = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?")
_SHORT_ID: Final = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """An image to copy, with its names and digests at the source.

    `source`: for skopeo; `at` puts a file's path in. `digests`: of an index, a manifest, a
    configuration. `manifest`: the digest it must have. `daemon`: saves the image first.
    """

    source: str
    options: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    manifest: str = ""
    daemon: DaemonImage | None = None

    def at(self, path: Path) -> Origin:
        """Read from this file or directory."""
        return replace(self, source=self.source.replace("{}", str(path), 1))


def origin_of_service(transport: str, rest: str, work: Path, limits: ImportLimits) -> Origin:
    """The image of a registry or a daemon, by its digest or id.

    Raises `PolicyError` for a bad name or another digest, `HostError` when none answers.
    """
    text = rest.removeprefix("//") if transport == "docker" else rest
    try:
        if transport == "docker-daemon" and _SHORT_ID.fullmatch(text):
            return _of_daemon(text, None, limits)
        reference = parse_reference(text)
    except ValueError as error:
        raise PolicyError(str(error), where=printable(f"{transport}:{rest}")) from error
    if transport == "docker":
        return _of_registry(reference, work, limits)
    return _of_daemon(reference.untagged.familiar, reference, limits)


def _of_registry(reference: Reference, work: Path, limits: ImportLimits) -> Origin:
    """As in Docker, loopback registries may speak HTTP."""
    is_local = _LOOPBACK.fullmatch(reference.registry) is not None
    wanted = reference.untagged.canonical
    argv = [tool("skopeo"), "--tmpdir", str(work), "inspect", "--raw"]
    argv += [*(["--tls-verify=false"] if is_local else []), f"docker://{wanted}"]
    raw = run_tool(argv, timeout_s=limits.answer_s, env=plain_env(TMPDIR=str(work)), cwd=work)
    top = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    if reference.digest and top != reference.digest:
        what = f"the registry gave a manifest of another digest: {top}"
        hint = "ask the registry's operator; nothing was kept"
        raise PolicyError(what, where=printable(reference.familiar), hint=hint)
    document = parse_document(raw)
    manifest = instance_of(document, debian_arch()) if is_index(document) else top
    return Origin(
        source=f"docker://{reference.registry}/{reference.path}@{manifest}",
        options=("--src-tls-verify=false",) if is_local else (),
        names=(reference.untagged.familiar,),
        digests=tuple(dict.fromkeys((top, manifest))),
        manifest=manifest,
    )


def _of_daemon(name: str, reference: Reference | None, limits: ImportLimits) -> Origin:
    found = ask_daemons(daemon_hosts(os.environ), name, timeout_s=limits.answer_s)
    digests = tuple(dict.fromkeys((found.image_id, *found.digests)))
    if reference is not None and reference.digest and reference.digest not in digests:
        raise PolicyError(
            "the daemon knows this image by another digest",
            where=printable(f"docker-daemon:{reference.familiar}"),
            hint=f"`belljar image import docker://{reference.untagged.familiar}` fetches it from "
            f"its registry",
        )
    asked = (reference.untagged.familiar,) if reference else ()
    return Origin(
        source="docker-archive:{}",
        daemon=found,
        names=asked or names_of_archive([{"RepoTags": list(found.names)}])[0],
        digests=digests,
    )


def origin_of_archive(path: Path, tag: str, scratch: Path, limits: ImportLimits) -> Origin:
    """The image `tag`, or the only one. Raises `PolicyError`."""
    if not path.is_file():
        hint = "name what `docker save` wrote"
        raise PolicyError("it is no file", where=printable(str(path)), hint=hint)
    try:
        images = names_of_archive(json.loads(_member(path, b"manifest.json", scratch, limits)))
    except (ValueError, RecursionError):  # or a LayerError: skopeo says what is wrong
        images = ()
    if tag:
        names = list[str]()
        with suppress(ValueError):
            names.append(parse_reference(tag).familiar)
        return Origin(source=f"docker-archive:{{}}:{tag}", names=tuple(names))
    return Origin(source="docker-archive:{}", names=_single(images, path, "docker-archive"))


def origin_of_layout(path: Path, tag: str, limits: ImportLimits) -> Origin:
    """The image `tag`, or the only one. Raises `PolicyError`, `LayerError`."""
    index = parse_document(read_bounded(path / "index.json", limits))
    images = names_of_index(index)
    if tag:
        named = (name for names in images for name in names)
        called = tuple(name for name in named if tag in (name, name.rpartition(":")[2]))
        return Origin(source=f"oci:{{}}:{tag}", names=called)
    names = _single(images, path, "oci")
    first = next(iter(_entries(index)), {})
    digest = str(first.get("digest"))
    blob = path / "blobs/sha256" / digest.removeprefix("sha256:")
    if DIGEST.fullmatch(digest) is None or not is_index(first) or not blob.is_file():
        return Origin(source="oci:{}", names=names)
    if f"sha256:{hashlib.sha256(read_bounded(blob, limits)).hexdigest()}" != digest:
        raise LayerError("a document's bytes are not those of its digest")
    # A nested index: a registry has the image under its digest.
    return Origin(source="oci:{}", names=names, digests=(digest,))


def _member(archive: Path, name: bytes, scratch: Path, limits: ImportLimits) -> bytes:
    with closing(
        Layer(archive.open("rb"), archive.stat().st_size, "")
        if is_plain(archive)
        else open_layer(archive, None, max_bytes=limits.max_bytes, scratch=scratch)
    ) as opened:
        for entry in read_entries(opened, opened.size_bytes, limits.max_entries):
            if entry.path == (name,) and entry.kind is EntryKind.FILE:
                if entry.size_bytes > limits.max_document_bytes:
                    raise LayerError(f"a document is larger than {limits.max_document_bytes} bytes")
                return b"".join(opened.chunks(entry.offset, entry.size_bytes))
    return b""


def _single(images: Sequence[tuple[str, ...]], path: Path, transport: str) -> tuple[str, ...]:
    if len(images) > 1:
        names = [name for image in images for name in image[:1]] or ["images without a name"]
        raise PolicyError(
            f"it holds {len(images)} images: {printable(', '.join(names), max_chars=400)}",
            where=printable(str(path)),
            hint=f"name one: `belljar image import "
            f"{transport}:{printable(str(path))}:{printable(names[0])}`",
        )
    return images[0] if images else ()
