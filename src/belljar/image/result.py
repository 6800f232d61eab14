"""A build's result, taken out of the build's namespace and judged as an imported layer is.

A step that broke out of its container may have changed what the tools here read and write, so what
they leave is believed as little as an archive from elsewhere.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from belljar.image.config import ImageConfig, config_of
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.layers.blob import LayerBlob
from belljar.image.layers.headers import read_entries
from belljar.image.layers.tree import MergedTree
from belljar.image.oci import check_platform, pack_tree
from belljar.image.origin import parse_document
from belljar.image.storage import Tools
from belljar.image.tools import WORK, give_tree
from belljar.policy.files import open_regular, read_regular
from belljar.units import format_size, printable

RESULT: Final = "localhost/result"
# A sparse file takes its whole size in the archive: it is stopped here, in the shell's units of 512
# bytes, before it fills the disk.
_MAX_BLOCKS: Final = (ImportLimits().max_bytes + (1 << 30)) // 512
# Times in whole seconds, as in squashfs: a fraction would cost a header of its own for each file.
_EXPORT: Final = f"""
container=$({{buildah}} from --pull=never {RESULT})
mounted=$({{buildah}} mount "$container")
(ulimit -f {_MAX_BLOCKS}; exec tar --create --file={WORK}/out/layer --one-file-system \\
  --numeric-owner --xattrs \\
  --xattrs-include='*' --format=posix --pax-option=delete=atime,delete=ctime,delete=mtime \\
  --directory="${{{{mounted:?}}}}" .)
{{buildah}} rm "$container"
{{buildah}} inspect --type image {RESULT} > {WORK}/out/image
du -xsm {WORK}/storage | cut -f1 > {WORK}/out/layers
"""
_MAX_DOCUMENT_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """`rootfs`: the packed tree; `document`: buildah's configuration of it, which a step that broke
    out of its container can have forged."""

    rootfs: Path
    config: ImageConfig
    document: dict[str, Any]
    has_setuid: bool
    layers_mib: int


def pack_result(tools: Tools, volumes: Iterable[str], *, keep_setuid: bool) -> BuildResult:
    """Pack the image `RESULT`, with these volumes, where the namespace can't reach it.

    Raises `LayerError` for what an image may not have, `HostError`.
    """
    rootfs = tools.inside.work.parent / "rootfs"
    try:
        with _held_directory(tools.inside.work / "out", tools.inside.first_uid) as out:
            buildah = shlex.join(tools.buildah())
            tools.run("/bin/sh", "-ec", _EXPORT.format(buildah=buildah))
            raw = read_regular(out, "image", _MAX_DOCUMENT_BYTES)
            document = dict(parse_document(str(parse_document(raw).get("Config")).encode()))
            check_platform(document)
            named = config_of({"config": {"Volumes": dict.fromkeys(volumes)}})
            config = replace(config_of(document), volumes=named.volumes)
            tree = _packed(out, config, rootfs, keep_setuid=keep_setuid)
            layers_mib = int(read_regular(out, "layers", 100))
    except LayerError:
        raise
    except (OSError, ValueError) as error:  # not what the tools write
        raise LayerError(f"its files can't be read: {printable(str(error))}") from error
    return BuildResult(
        rootfs=rootfs,
        config=config,
        document=document,
        has_setuid=tree.has_setuid,
        layers_mib=layers_mib,
    )


@contextmanager
def _held_directory(path: Path, owner: int) -> Iterator[Path]:
    """Make a directory; a path to it that holds whatever its owner puts in its place."""
    path.mkdir(mode=0o700)  # nothing of the steps is here: this fails if they made one
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        give_tree(path, owner)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _packed(out: Path, config: ImageConfig, rootfs: Path, *, keep_setuid: bool) -> MergedTree:
    limits = ImportLimits()
    tree = MergedTree(limits, keep_setuid=keep_setuid)
    with open_regular(out, "layer") as fd:
        file = os.fdopen(os.dup(fd), "rb")
        with closing(LayerBlob(file, os.fstat(fd).st_size, "")) as layer:
            if layer.size_bytes > limits.max_bytes:
                raise LayerError(f"it is larger than {format_size(limits.max_bytes)}")
            tree.begin_layer()
            for entry in read_entries(layer, layer.size_bytes):
                tree.apply(entry)
            pack_tree(tree, [layer], config, rootfs)
    return tree
