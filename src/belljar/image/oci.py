"""Imports container images; `design/policy.md` says why no tool unpacks them."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Any, Final

from belljar.errors import host_errors
from belljar.image.config import ImageConfig, config_of, debian_arch
from belljar.image.layers import ImageEntryKind, ImportLimits, LayerEntry, LayerError
from belljar.image.origin import ImageParts, fetched, read_document
from belljar.image.store import MADE_HERE, Image, Store, check_name
from belljar.image.tools import Report
from belljar.image.tree import LayerBlob, MergedTree, open_layer, pack
from belljar.store.home import need_space
from belljar.store.scratch import scratch_dir
from belljar.units import format_size, printable

__all__ = ["ImportLimits", "import_image"]

# What a small image takes; a large one that does not fit ends in one error all the same.
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
    """Raise `PolicyError` for a broken, hostile or too large image, else `HostError`."""
    bounds = limits or ImportLimits()
    if name:
        check_name(name)
    need_space(home, _MIN_FREE_BYTES, "importing an image")
    report("fetching")
    source = printable(ref, max_chars=300)
    hint = "look who may read it, and if the store's disk has room"
    try:
        with (
            host_errors("the image can't be imported", where=source, hint=hint),
            scratch_dir(home) as scratch,
            fetched(ref, scratch, bounds, report) as found,
        ):
            # An archive can't name itself as the images that Belljar makes.
            own = tuple(each for each in found.names if each not in MADE_HERE)
            if not (names := (name,) if name else own):
                raise LayerError("it has no name", hint="give it one with --name")
            rootfs, tree = scratch / "rootfs.sqfs", MergedTree(bounds, keep_setuid=keep_setuid)
            name_in_files, wanted = found.config
            config, image_id = read_document(found.files, name_in_files, bounds, wanted=wanted)
            check_platform(config)
            image_config = config_of(config)
            with ExitStack() as opened:
                layers = list[LayerBlob]()
                for layer in _layers(found, config, scratch, bounds):
                    layers.append(opened.enter_context(closing(layer)))
                    report(f"reading layer {len(layers)} of {len(found.layers)}")
                    tree.apply_layer(layer)
                report("packing")
                pack_tree(tree, layers, image_config, rootfs)
            return Store(home).add(
                rootfs,
                image_config,
                name=names[0],
                more_names=names[1:],
                source=source,
                created=printable(str(config.get("created") or ""), max_chars=40),
                origins=tuple(dict.fromkeys((*found.digests, f"sha256:{image_id}"))),
                setuid_programs=tree.setuid_programs,
                high_owner=tree.high_owner,
            )
    except LayerError as error:
        raise error.refusal(source) from error


def check_platform(config: Mapping[str, Any]) -> None:
    arch = debian_arch()
    stated = (str(config.get("os") or "linux"), str(config.get("architecture") or arch))
    if stated != ("linux", arch):
        made_for = printable("/".join(stated))
        raise LayerError(f"it is made for {made_for}; guests here are linux/{arch}")


def _layers(
    found: ImageParts, config: Mapping[str, Any], scratch: Path, limits: ImportLimits
) -> Iterator[LayerBlob]:
    stated = config.get("rootfs")
    diff_ids = stated.get("diff_ids") if isinstance(stated, dict) else None
    if not isinstance(diff_ids, list):
        raise LayerError("a document is broken: diff_ids")
    if len(found.layers) > limits.max_layers or len(found.layers) != len(diff_ids):
        counts = f"{len(found.layers)} layers, and {len(diff_ids)} in its configuration"
        raise LayerError(f"it has {counts}; at most {limits.max_layers}")
    left_bytes = limits.max_bytes
    for (name, digest), diff_id in zip(found.layers, diff_ids, strict=True):
        blob, known = found.files(name), str(diff_id) or "none"  # an empty one fits no layer
        layer = open_layer(blob, scratch, max_bytes=left_bytes, digest=digest, diff_id=known)
        # Also of one that is mostly compression, and listed many times: each time is work.
        if (left_bytes := left_bytes - max(layer.size_bytes, blob.stat().st_size)) < 0:
            layer.close()
            what = f"all its layers are larger than {format_size(limits.max_bytes)}"
            raise LayerError(what, hint="--max-size allows more")
        yield layer


def pack_tree(
    tree: MergedTree, layers: Sequence[LayerBlob], config: ImageConfig, rootfs: Path
) -> None:
    for path, wanted in _PLACES.items():
        found = tree.at(path)
        is_link = found is not None and found.kind is ImageEntryKind.SYMLINK
        if found and found.kind is not wanted and not (is_link and path in _MAY_BE_LINKS):
            raise LayerError(f"its /{path.decode()} is a {found.kind}; a {wanted} is needed")
    for place in (config.workdir, *config.volumes):
        above = ""
        for part in filter(None, place.split("/")):
            above = f"{above}/{part}"
            tree.ensure(os.fsencode(above[1:]), ImageEntryKind.DIRECTORY, 0o755)
    for path, kind in _PLACES.items():
        is_file = kind is ImageEntryKind.FILE
        if path not in _NOT_MADE:
            tree.ensure(path, kind, 0o644 if is_file else 0o1777 if path == b"tmp" else 0o755)

    def content(info: tarfile.TarInfo, node: LayerEntry) -> Iterable[bytes]:
        if not info.isreg() or not node.content_layer:
            return ()
        return layers[node.content_layer - 1].chunks(node.offset, node.size_bytes)

    members = ((info, content(info, node)) for info, node in tree.emit())
    pack(members, rootfs, made_s=tree.newest_s)


def pack_layer(
    file: IO[bytes], config: ImageConfig, rootfs: Path, *, keep_setuid: bool
) -> MergedTree:
    limits = ImportLimits()
    layer = LayerBlob(file)
    if layer.size_bytes > limits.max_bytes:
        raise LayerError(f"it is larger than {format_size(limits.max_bytes)}")
    tree = MergedTree(limits, keep_setuid=keep_setuid)
    tree.apply_layer(layer)
    pack_tree(tree, [layer], config, rootfs)
    return tree


# What a cell's start mounts over, reads or writes before the image's first program, made where it
# is missing. A pipe would hold the start, a link lead it elsewhere; some images have a link that
# does neither.
_FILES: Final = ("passwd", "group", "hostname", "hosts", "machine-id", "resolv.conf")
_PLACES: Final = {
    **dict.fromkeys((b"dev", b"proc", b"sys", b"run", b"etc", b"tmp"), ImageEntryKind.DIRECTORY),
    **{f"etc/{name}".encode(): ImageEntryKind.FILE for name in _FILES},
}
_MAY_BE_LINKS: Final = {b"run", b"tmp", b"etc/machine-id", b"etc/resolv.conf"}
_NOT_MADE: Final = {b"etc/passwd", b"etc/group"}
