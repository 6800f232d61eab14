"""Importing container images: skopeo fetches; the result is read with bounds, merged in memory.

No digest, size or name of the archive is trusted.
`design/policy.md` says why no tool unpacks it on the host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from belljar.errors import BelljarError, HostError
from belljar.image.config import ImageConfig, config_of
from belljar.image.daemon import daemon_answers, daemon_hosts
from belljar.image.fetch import fetched, transport_of
from belljar.image.kernel import debian_arch
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.layers.blob import Layer, open_layer
from belljar.image.layers.headers import EntryKind, EntryPath, read_entries
from belljar.image.layers.tree import Member, Tree, pack
from belljar.image.origin import MANIFEST_TYPES, parse_document, read_bounded
from belljar.image.store import MADE_HERE, Image, Store, check_name, file_sha256, is_like_digest
from belljar.policy.reference import IMAGE_ID
from belljar.store.home import need_space
from belljar.store.scratch import scratch_dir
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.compose.data import ServiceBuild

__all__ = ["ImportLimits", "default_name", "import_image"]

Report: TypeAlias = Callable[[str], None]
_T = TypeVar("_T")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_LAYER_TYPES: Final = re.compile(
    r"application/vnd\.(?:oci\.image\.layer\.v1\.tar(?:\+(?:gzip|zstd))?"
    r"|docker\.image\.rootfs\.diff\.tar(?:\.(?:gzip|zstd))?)"
)
_MIN_FREE_BYTES: Final = 256 << 20


def import_image(
    home: Path,
    ref: str,
    *,
    name: str = "",
    limits: ImportLimits | None = None,
    keep_setuid: bool = False,
    report: Report = lambda _line: None,
) -> Image:
    """Put the container image `ref` (as skopeo names it) into the store.

    Everything is checked before packing; setuid bits are removed unless `keep_setuid`. Raises
    `PolicyError` for a broken, hostile or too large image, else `HostError`; the store is then as
    it was.
    """
    bounds = limits or ImportLimits()
    transport_of(ref)
    if name:
        check_name(name)
    need_space(home, _MIN_FREE_BYTES, "importing an image")
    report("fetching")
    with scratch_dir(home) as scratch, fetched(ref, scratch, bounds, report) as found:
        # an archive can't name itself as the images that Belljar makes
        stated = [each for each in found.origin.names if each not in MADE_HERE]
        own = tuple(each for each in stated if not is_like_digest(each))
        names = (name,) if name else own or (default_name(ref),)
        directory, rootfs = found.directory, scratch / "rootfs.sqfs"
        tree, source = Tree(bounds, keep_setuid=keep_setuid), printable(ref, max_chars=300)
        try:
            manifest, digest = _manifest(directory / "manifest.json", found.origin.manifest, bounds)
            described = _part(manifest, "config", dict)
            config = _configuration(directory, described, bounds)
            image_config = config_of(config)
            with ExitStack() as opened:
                layers = _merge(
                    tree, opened, directory, scratch, manifest, config, bounds, report=report
                )
                report("packing")
                pack_tree(tree, layers, image_config, rootfs)
        except LayerError as error:
            raise error.refusal(source) from error
        origins = (*found.origin.digests, digest, str(described["digest"]))
        return Store(home).add(
            rootfs,
            image_config,
            name=names[0],
            more_names=names[1:],
            source=source,
            created=printable(str(config.get("created") or ""), max_chars=40),
            origins=tuple(dict.fromkeys(origins)),
            setuid_programs=("kept" if keep_setuid else "removed") if tree.has_setuid else "",
            high_owner=tree.high_owner,
        )


def _manifest(path: Path, wanted: str, limits: ImportLimits) -> tuple[Mapping[str, Any], str]:
    """The manifest and its digest, which must be `wanted`, if given."""
    manifest = parse_document(read_bounded(path, limits))
    digest = f"sha256:{file_sha256(path)}"
    if wanted and digest != wanted:
        raise LayerError("its manifest is not the one of its digest")
    if manifest.get("mediaType", next(iter(MANIFEST_TYPES))) not in MANIFEST_TYPES:
        raise LayerError("its manifest is of a type that isn't taken")
    return manifest, digest


def _configuration(
    directory: Path, descriptor: Mapping[str, Any], limits: ImportLimits
) -> Mapping[str, Any]:
    path, digest = _blob(directory, descriptor)
    config = parse_document(read_bounded(path, limits))
    if file_sha256(path) != digest:
        raise LayerError("a document's bytes are not those of its digest")
    check_platform(config)
    return config


def check_platform(config: Mapping[str, Any]) -> None:
    """Raise `LayerError` for an image that is not for this machine's guests."""
    arch = debian_arch()
    stated = (str(config.get("os") or "linux"), str(config.get("architecture") or arch))
    if stated != ("linux", arch):
        made_for = printable("/".join(stated))
        raise LayerError(f"it is made for {made_for}; guests here are linux/{arch}")


def _merge(
    tree: Tree,
    opened: ExitStack,
    directory: Path,
    scratch: Path,
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    limits: ImportLimits,
    *,
    report: Report,
) -> list[Layer]:
    described, layers = _part(manifest, "layers", list), list[Layer]()
    diff_ids = _part(_part(config, "rootfs", dict), "diff_ids", list)
    if len(described) > limits.max_layers or len(described) != len(diff_ids):
        raise LayerError(
            f"it has {len(described)} layers and {len(diff_ids)} in its configuration; at most "
            f"{limits.max_layers}"
        )
    left_bytes = limits.max_bytes
    for number, (descriptor, diff_id) in enumerate(zip(described, diff_ids, strict=True), 1):
        report(f"reading layer {number} of {len(described)}")
        blob, digest = _blob(directory, descriptor)
        kind = str(descriptor.get("mediaType"))
        if _LAYER_TYPES.fullmatch(kind) is None:
            what = f"of the type {printable(kind)!r}, which isn't taken"
            raise LayerError(f"layer {number} is {what}")
        layer = open_layer(blob, digest, max_bytes=left_bytes, scratch=scratch)
        layers.append(opened.enter_context(closing(layer)))
        blob.unlink()
        if diff_id != f"sha256:{layer.diff_id}":
            what = "not what the configuration says: its digest differs"
            raise LayerError(f"layer {number} is {what}")
        left_bytes -= layer.size_bytes
        tree.begin_layer()
        for entry in read_entries(layer, layer.size_bytes):
            tree.apply(entry)
    return layers


def pack_tree(tree: Tree, layers: Sequence[Layer], config: ImageConfig, rootfs: Path) -> None:
    """Pack a merged tree, with the places that each cell needs, as `rootfs`.

    Raises `LayerError` for a place of the start that is not what it must be.
    """
    for wanted, paths in _PLACES.items():
        for path in paths:
            links = {EntryKind.SYMLINK} if path in _MAY_BE_LINKS else set[EntryKind]()
            if (kind := tree.kind_of(path)) not in {None, wanted, *links}:
                raise LayerError(f"its /{path.decode()} is a {kind}, where a {wanted} is needed")
    for parts, mode, kind in _mount_points(config):
        tree.ensure(parts, mode, kind=kind)
    members = (
        Member(
            info=info,
            chunks=layers[node.layer_of_content - 1].chunks(node.offset, node.size_bytes)
            if node.layer_of_content
            else (),
        )
        for info, node in tree.emit()
    )
    pack(members, rootfs, made_s=tree.newest_s)


def _mount_points(config: ImageConfig) -> Iterator[tuple[EntryPath, int, EntryKind]]:
    """Yield what each image must have, with its mode: the work directory, volumes, mount points."""
    for place in (config.workdir, *config.volumes):
        parts = tuple(os.fsencode(place).strip(b"/").split(b"/"))
        for depth in range(1, len(parts) + 1) if parts != (b"",) else ():
            yield parts[:depth], 0o755, EntryKind.DIRECTORY
    for directory in (b"dev", b"proc", b"sys", b"run", b"etc"):
        yield (directory,), 0o755, EntryKind.DIRECTORY
    yield (b"tmp",), 0o1777, EntryKind.DIRECTORY
    for file in (b"machine-id", b"resolv.conf", b"hostname", b"hosts"):
        yield (b"etc", file), 0o644, EntryKind.FILE


# What a cell's start mounts over, reads or writes before the image's first program. A pipe would
# hold the start, a link lead it elsewhere; some images have a link that does neither.
_PLACES: Final = {
    EntryKind.DIRECTORY: (b"dev", b"proc", b"sys", b"etc", b"run", b"tmp"),
    EntryKind.FILE: (
        *(b"etc/passwd", b"etc/group", b"etc/hostname", b"etc/hosts"),
        *(b"etc/machine-id", b"etc/resolv.conf"),
    ),
}
_MAY_BE_LINKS: Final = {b"run", b"tmp", b"etc/machine-id", b"etc/resolv.conf"}


def default_name(ref: str) -> str:
    """The file's own name without its ending."""
    file = ref.partition(":")[2].partition(":")[0]
    stem = re.sub(
        r"(?:\.(?:tar|tgz|gz|zst|oci))+$", "", file.rstrip("/").rpartition("/")[2].lower()
    )
    return re.sub(r"[^a-z0-9._-]+", "-", stem).strip("._-") or "image"


def _blob(directory: Path, descriptor: object) -> tuple[Path, str]:
    """Only 64 hex digits of a descriptor enter the path."""
    stated = descriptor.get("digest") if isinstance(descriptor, dict) else None
    match = _DIGEST.fullmatch(str(stated))
    if match is None:
        raise LayerError("a digest is not a SHA-256")
    path = directory / match[1]
    if not path.is_file() or path.is_symlink():
        raise LayerError(f"the blob {match[1][:12]} is missing")
    return path, match[1]


def _part(document: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    value = document.get(name)
    if not isinstance(value, kind):
        raise LayerError(f"a document is broken: {name}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An image to get.

    `build`: how. `bases`: of its Dockerfile. `why`: it can't even be named.
    """

    image: str
    build: ServiceBuild | None = None
    bases: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obtained:
    """The image, or the error that prevented it."""

    wanted: Wanted
    image: Image | None = None
    was_there: bool = False
    error: BelljarError | None = None


Build: TypeAlias = Callable[[Wanted, Report], None]
"""Builds an image into the store. Raises `BelljarError`."""


def obtain(
    home: Path,
    wanted: Iterable[Wanted],
    *,
    limits: ImportLimits,
    build: Build,
    report: Report = lambda _line: None,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Obtained]:
    """Get each missing image; a failure hides no other."""
    daemon: HostError | bool
    try:
        daemon = any(daemon_answers(host) for host in daemon_hosts(environ))
    except HostError as error:
        daemon = error
    seen = set[Wanted]()

    def each(one: Wanted) -> Iterator[Obtained]:
        if one in seen:
            return
        seen.add(one)

        def report_of(line: str) -> None:
            report(f"{one.image}: {line}")

        try:
            yield _fetched(home, one, limits, report_of, daemon=daemon)
            return
        except BelljarError as error:
            if not one.build and one.image not in MADE_HERE:
                yield Obtained(wanted=one, error=error)
                return
        for base in one.bases:
            yield from each(Wanted(image=base))
        try:
            build(one, report_of)
            yield Obtained(wanted=one, image=Store(home).find(one.image))
        except BelljarError as error:
            yield Obtained(wanted=one, error=error)

    for one in wanted:
        yield from each(one)


def _fetched(
    home: Path, wanted: Wanted, limits: ImportLimits, report: Report, *, daemon: HostError | bool
) -> Obtained:
    """`daemon`: True when one answers, or its error."""
    if wanted.why:
        raise HostError(f"its image is not known: {wanted.why}", where=wanted.image)
    try:
        return Obtained(wanted=wanted, image=Store(home).find(wanted.image), was_there=True)
    except HostError as error:
        missing = error
    if wanted.image in MADE_HERE:
        raise missing
    unasked: BelljarError | None = daemon if isinstance(daemon, HostError) else None
    if daemon is True:
        try:
            made = import_image(
                home,
                f"docker-daemon:{wanted.image}",
                limits=limits,
                keep_setuid=True,
                report=report,
            )
            return Obtained(wanted=wanted, image=made)
        except BelljarError as error:
            unasked = error
    if unasked is not None:
        report(f"not from a daemon: {unasked.what}")
    if wanted.build:
        raise missing
    if IMAGE_ID.fullmatch(wanted.image):
        what = "a registry can't give an image by its id"
        raise HostError(what + _also(unasked), where=wanted.image, hint=missing.hint) from unasked
    try:
        made = import_image(
            home, f"docker://{wanted.image}", limits=limits, keep_setuid=True, report=report
        )
    except BelljarError as error:
        raise HostError(error.what + _also(unasked), where=error.where, hint=error.hint) from error
    return Obtained(wanted=wanted, image=made)


def _also(unasked: BelljarError | None) -> str:
    return f"; the daemon: {unasked.where}: {unasked.what}" if unasked is not None else ""
