"""Importing container images. skopeo fetches and translates; what it hands over is read with bounds and merged in memory, never unpacked.

Nothing of the archive is believed: not its digests, not its sizes, not its names. Design note 0007 says why no tool unpacks it on the host.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from belljar.errors import PolicyError
from belljar.image.config import ImageConfig, config_of
from belljar.image.fetch import fetched, transport_of
from belljar.image.kernel import debian_arch
from belljar.image.layers import ImportLimits, LayerError, Tree, read_entries
from belljar.image.layers.blob import Layer, closing_all, open_layer
from belljar.image.layers.headers import EntryKind
from belljar.image.layers.tree import Emitted
from belljar.image.manifest import MANIFEST_TYPES
from belljar.image.pack import pack
from belljar.image.store import MADE_HERE, Image, SetuidPrograms, Store, check_name, file_sha256, is_like_digest
from belljar.store.home import need_space
from belljar.store.scratch import scratch_dir
from belljar.units import printable

__all__ = ["ImportLimits", "default_name", "import_image"]

Report = Callable[[str], None]
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_LAYER_TYPES: Final = re.compile(
    r"application/vnd\.(?:oci\.image\.layer\.v1\.tar(?:\+(?:gzip|zstd))?|docker\.image\.rootfs\.diff\.tar(?:\.(?:gzip|zstd))?)"
)
_LEAST_FREE_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A packed entry whose content lies in a layer."""

    emitted: Emitted
    layers: list[Layer]

    @property
    def info(self) -> tarfile.TarInfo:
        return self.emitted.info

    @property
    def chunks(self) -> Iterable[bytes]:
        node = self.emitted.node
        return self.layers[node.layer_of_content - 1].chunks(node.offset, node.size_bytes)


def import_image(
    home: Path,
    ref: str,
    *,
    name: str = "",
    limits: ImportLimits | None = None,
    keep_setuid: bool = False,
    report: Report = lambda _line: None,
) -> Image:
    """Put the container image `ref` (as skopeo names it) into the store under `name` (default: what
    its source calls it).

    All of it is checked before it is packed; setuid bits are taken away unless `keep_setuid`.
    Raises `PolicyError` when the image is broken, hostile or beyond `limits`, `HostError` when this
    host can't; the store is then as it was and nothing is left behind.
    """
    bounds = limits or ImportLimits()
    transport_of(ref)
    if name:
        check_name(name)
    need_space(home, _LEAST_FREE_BYTES, "importing an image")
    report("fetching")
    with scratch_dir(home) as scratch, fetched(ref, scratch, bounds, report) as found:
        # an archive can't name itself as the images that Belljar makes
        own = (each for each in found.origin.names if each not in MADE_HERE and not is_like_digest(each))
        names = (name,) if name else tuple(own) or (default_name(ref),)
        try:
            made = _from_directory(
                found.directory, found.origin.manifest, scratch, bounds, keep_setuid=keep_setuid, report=report
            )
        except LayerError as error:
            raise PolicyError(f"the image is refused: {error}", where=printable(ref), hint=_hint(error)) from error
        return Store(home).add(
            made.rootfs,
            made.config,
            name=names[0],
            more_names=names[1:],
            source=printable(ref, max_chars=300),
            created=made.created,
            origins=tuple(dict.fromkeys((*found.origin.digests, *made.digests))),
            setuid_programs=made.setuid_programs,
        )


def import_directory(
    home: Path,
    directory: Path,
    scratch: Path,
    *,
    name: str,
    source: str,
    built: Mapping[str, Any],
    limits: ImportLimits,
    keep_setuid: bool,
    report: Report,
) -> Image:
    """Put the image in `directory` (as skopeo's `dir:`, files of ours alone) into the store.

    Raises as `import_image`.
    """
    try:
        made = _from_directory(directory, "", scratch, limits, keep_setuid=keep_setuid, report=report)
    except LayerError as error:
        raise PolicyError(f"the image is refused: {error}", where=source, hint=_hint(error)) from error
    return Store(home).add(
        made.rootfs,
        made.config,
        name=name,
        source=source,
        created=made.created,
        origins=made.digests,
        built=built,
        setuid_programs=made.setuid_programs,
    )


def _hint(error: LayerError) -> str:
    text = str(error)
    return "" if "--" in text else "use an image without it; nothing of this one was kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A packed image, and the digests of its manifest and configuration."""

    rootfs: Path
    config: ImageConfig
    created: str
    digests: tuple[str, str]
    setuid_programs: SetuidPrograms


def _from_directory(
    directory: Path, manifest_digest: str, scratch: Path, limits: ImportLimits, *, keep_setuid: bool, report: Report
) -> _Made:
    manifest = _read_json(directory / "manifest.json", limits)
    digest = f"sha256:{file_sha256(directory / 'manifest.json')}"
    if manifest_digest and digest != manifest_digest:
        raise LayerError("its manifest is not the one of its digest")
    if manifest.get("mediaType", next(iter(MANIFEST_TYPES))) not in MANIFEST_TYPES:
        raise LayerError("its manifest is of a type that isn't taken")
    config = _document(directory, _object(manifest, "config"), limits)
    image_config = config_of(config)
    _check_platform(config)
    tree, opened = Tree(limits, keep_setuid=keep_setuid), list[Layer]()
    with closing_all(opened) as layers:
        _merge(tree, layers, directory, scratch, manifest, config, limits, report=report)
        report("packing")
        _complete(tree, image_config)
        rootfs = scratch / "rootfs.sqfs"
        entries = (_Entry(emitted=emitted, layers=layers) for emitted in tree.emit())
        pack(entries, rootfs, made_s=tree.newest_s)
    created = printable(str(config.get("created") or ""), max_chars=40)
    config_digest = str(_object(manifest, "config")["digest"])
    setuid_programs: SetuidPrograms = ("kept" if keep_setuid else "removed") if tree.has_setuid else ""
    return _Made(
        rootfs=rootfs,
        config=image_config,
        created=created,
        digests=(digest, config_digest),
        setuid_programs=setuid_programs,
    )


def _merge(
    tree: Tree,
    layers: list[Layer],
    directory: Path,
    scratch: Path,
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    limits: ImportLimits,
    *,
    report: Report,
) -> None:
    described = _list(manifest, "layers")
    diff_ids = _list(_object(config, "rootfs"), "diff_ids")
    if len(described) > limits.max_layers or len(described) != len(diff_ids):
        raise LayerError(
            f"it has {len(described)} layers and {len(diff_ids)} in its configuration; at most {limits.max_layers}"
        )
    left_bytes = limits.max_bytes
    for number, (descriptor, diff_id) in enumerate(zip(described, diff_ids, strict=True), 1):
        report(f"reading layer {number} of {len(described)}")
        blob, digest = _blob(directory, descriptor)
        if _LAYER_TYPES.fullmatch(str(descriptor.get("mediaType"))) is None:
            raise LayerError(
                f"layer {number} is of the type {printable(str(descriptor.get('mediaType')))!r}, which isn't taken"
            )
        layer = open_layer(blob, digest, max_bytes=left_bytes, scratch=scratch)
        layers.append(layer)
        blob.unlink()
        if diff_id != f"sha256:{layer.diff_id}":
            raise LayerError(f"layer {number} is not what the configuration says: its digest differs")
        left_bytes -= layer.size_bytes
        tree.begin_layer()
        for entry in read_entries(layer, layer.size_bytes):
            tree.apply(entry)


def _complete(tree: Tree, config: ImageConfig) -> None:
    """What every guest needs to mount on, and, as Docker makes them, the image's work directory and
    volumes: if the image has it not.
    """
    for place in (config.workdir, *config.volumes):
        parts = tuple(os.fsencode(place).strip(b"/").split(b"/"))
        for depth in range(1, len(parts) + 1) if parts != (b"",) else ():
            tree.ensure(parts[:depth], 0o755)
    for directory in (b"dev", b"proc", b"sys", b"run", b"etc"):
        tree.ensure((directory,), 0o755)
    tree.ensure((b"tmp",), 0o1777)
    for file in (b"machine-id", b"resolv.conf", b"hostname", b"hosts"):
        tree.ensure((b"etc", file), 0o644, kind=EntryKind.FILE)


def default_name(ref: str) -> str:
    """A name for the image of a file that has none for it: the file's own, without its ending."""
    file = ref.partition(":")[2].partition(":")[0]
    stem = re.sub(r"(?:\.(?:tar|tgz|gz|zst|oci))+$", "", file.rstrip("/").rpartition("/")[2].lower())
    return re.sub(r"[^a-z0-9._-]+", "-", stem).strip("._-") or "image"


def _check_platform(config: Mapping[str, Any]) -> None:
    stated = (str(config.get("os") or "linux"), str(config.get("architecture") or debian_arch()))
    if stated != ("linux", debian_arch()):
        raise LayerError(f"it is made for {printable('/'.join(stated))}; guests here are linux/{debian_arch()}")


def _document(directory: Path, descriptor: Mapping[str, Any], limits: ImportLimits) -> Mapping[str, Any]:
    """The JSON document that a descriptor names, its digest checked."""
    path, digest = _blob(directory, descriptor)
    document = _read_json(path, limits)
    if file_sha256(path) != digest:
        raise LayerError("a document's bytes are not those of its digest")
    return document


def _blob(directory: Path, descriptor: object) -> tuple[Path, str]:
    """Where a descriptor's bytes are. Only 64 hex digits of it become part of a path."""
    match = _DIGEST.fullmatch(str(descriptor.get("digest"))) if isinstance(descriptor, dict) else None
    if match is None:
        raise LayerError("a digest is not a SHA-256")
    path = directory / match[1]
    if not path.is_file() or path.is_symlink():
        raise LayerError(f"the blob {match[1][:12]} is missing")
    return path, match[1]


def _read_json(path: Path, limits: ImportLimits) -> Mapping[str, Any]:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > limits.max_document_bytes:
        raise LayerError(f"a document is missing or larger than {limits.max_document_bytes} bytes")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise LayerError("a document is not JSON that can be read") from error
    if not isinstance(document, dict):
        raise LayerError("a document is not a JSON object")
    return document


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    if not isinstance(value, dict):
        raise LayerError(f"a document is broken: {name}")
    return value


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise LayerError(f"a document is broken: {name}")
    return value
