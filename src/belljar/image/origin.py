"""Where an image comes from: what skopeo copies, and the source's names and digests of it.

A tag may change: a registry is asked for the digest that is then fetched, a daemon for an id.
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
from belljar.image.daemon import DaemonImage, ask_daemons, daemon_hosts
from belljar.image.kernel import debian_arch
from belljar.image.layers.blob import Layer, is_plain, open_layer
from belljar.image.layers.headers import EntryKind, read_entries
from belljar.image.layers.limits import ImportLimits, LayerError
from belljar.image.manifest import (
    DIGEST,
    instance_of,
    is_index,
    names_of_archive,
    names_of_index,
    parse_document,
    read_bounded,
)
from belljar.image.tools import plain_env, run_tool, tool
from belljar.policy.reference import Reference, parse_reference
from belljar.units import printable

_LOOPBACK: Final = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?")
_SHORT_ID: Final = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What to copy, and what its source says of it.

    Attributes:
        source: for skopeo; a file's has its path put in by `at`.
        options: for `skopeo copy`.
        names: what the source calls it, in the normal form.
        digests: under which the source knows it: of an index, a manifest, a configuration.
        manifest: the digest that the manifest must have; "" where it is unknown.
        daemon: where it is to be saved from first; None for what skopeo reads itself.
    """

    source: str
    options: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    manifest: str = ""
    daemon: DaemonImage | None = None

    def at(self, path: Path) -> Origin:
        """The same, read from this file or directory."""
        return replace(self, source=self.source.replace("{}", str(path), 1))


def origin_of_service(transport: str, rest: str, work: Path, limits: ImportLimits) -> Origin:
    """The image of a registry (`docker://NAME`) or a daemon (`docker-daemon:NAME`), by its digest
    or id.

    Raises `PolicyError` for what can't be a name and for another digest than the named one,
    `HostError` when none answers.
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
    """As Docker has it, a registry on this machine's loopback may speak HTTP."""
    is_local = _LOOPBACK.fullmatch(reference.registry) is not None
    wanted = reference.untagged.canonical
    argv = [tool("skopeo"), "--tmpdir", str(work), "inspect", "--raw"]
    argv += [*(["--tls-verify=false"] if is_local else []), f"docker://{wanted}"]
    raw = run_tool(argv, timeout_s=limits.answer_s, env=plain_env(TMPDIR=str(work)), cwd=work)
    top = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    if reference.digest and top != reference.digest:
        what = f"the registry gave a manifest of another digest: {top}"
        raise PolicyError(
            what,
            where=printable(reference.familiar),
            hint="ask whoever runs the registry; nothing was kept",
        )
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
    """What `docker save` wrote: the image named `tag`, or the only one.

    Raises `PolicyError` for several, `LayerError`.
    """
    if not path.is_file():
        raise PolicyError(
            "it is no file", where=printable(str(path)), hint="name what `docker save` wrote"
        )
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
    """An OCI layout: the image of this tag, or the only one.

    Raises `PolicyError` for several, `LayerError`.
    """
    index = parse_document(read_bounded(path / "index.json", limits))
    images = names_of_index(index)
    if tag:
        named = (name for names in images for name in names)
        called = tuple(name for name in named if tag in (name, name.rpartition(":")[2]))
        return Origin(source=f"oci:{{}}:{tag}", names=called)
    names, entries = _single(images, path, "oci"), index.get("manifests")
    first = (
        entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
    )
    return Origin(source="oci:{}", names=names, digests=_index_digest(path, first, limits))


def _index_digest(
    layout: Path, descriptor: Mapping[str, Any], limits: ImportLimits
) -> tuple[str, ...]:
    """The digest of a nested index, under which a registry has the image; () if it is none."""
    digest = str(descriptor.get("digest"))
    blob = layout / "blobs/sha256" / digest.removeprefix("sha256:")
    if DIGEST.fullmatch(digest) is None or not is_index(descriptor) or not blob.is_file():
        return ()
    if f"sha256:{hashlib.sha256(read_bounded(blob, limits)).hexdigest()}" != digest:
        raise LayerError("a document's bytes are not those of its digest")
    return (digest,)


def _member(archive: Path, name: bytes, scratch: Path, limits: ImportLimits) -> bytes:
    """One small file of a tar archive; empty when there is none."""
    with closing(
        Layer(archive.open("rb"), archive.stat().st_size, "")
        if is_plain(archive)
        else open_layer(archive, None, max_bytes=limits.max_bytes, scratch=scratch)
    ) as opened:
        for number, entry in enumerate(read_entries(opened, opened.size_bytes)):
            if number > limits.max_entries:
                raise LayerError(f"it holds more than {limits.max_entries} entries")
            if entry.path == (name,) and entry.kind is EntryKind.FILE:
                if entry.size_bytes > limits.max_document_bytes:
                    raise LayerError(f"a document is larger than {limits.max_document_bytes} bytes")
                return b"".join(opened.chunks(entry.offset, entry.size_bytes))
    return b""


def _single(images: Sequence[tuple[str, ...]], path: Path, transport: str) -> tuple[str, ...]:
    """The names of the only image. Raises `PolicyError` for several."""
    if len(images) > 1:
        names = [name for image in images for name in image[:1]] or ["images without a name"]
        raise PolicyError(
            f"it holds {len(images)} images: {printable(', '.join(names), max_chars=400)}",
            where=printable(str(path)),
            hint=f"name one: `belljar image import "
            f"{transport}:{printable(str(path))}:{printable(names[0])}`",
        )
    return images[0] if images else ()
