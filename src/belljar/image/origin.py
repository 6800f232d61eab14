"""Finds an image at its source: a registry (by skopeo), a daemon, a file.

Nothing in a file is believed: callers check digests, and no name in an archive becomes a path.
Source: image-spec v1.1; the layout of `docker save`.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass, replace
from belljar.errors import HostError, PolicyError
from belljar.image.config import debian_arch
from belljar.image.layers import (
    MAX_TEXT_BYTES,
    ImageEntryKind,
    ImportLimits,
    LayerError,
    read_entries,
)
from belljar.image.store import reference_of
from belljar.image.tools import Report, plain_env, run_tool, tool
from belljar.image.tree import LayerBlob, is_plain, open_layer
from belljar.policy.reference import IMAGE_ID, parse_reference
from belljar.store.home import HINT_SPACE
from belljar.units import format_duration, format_size, printable

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
# Gives a file of an image by its name, until the next is asked for. Raises `LayerError`.
Files: TypeAlias = Callable[[str], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageParts:
    """A part is a name and its SHA-256, or ""."""

    files: Files
    config: tuple[str, str]
    layers: tuple[tuple[str, str], ...]
    names: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()


@contextmanager
def files_of_archive(archive: Path, work: Path, limits: ImportLimits) -> Iterator[Files]:
    """Give the files of a tar archive one at a time, below `work` under one fixed name.

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


def read_document(
    files: Files, name: str, limits: ImportLimits, *, wanted: str = "", kind: type = dict
) -> tuple[Any, str]:
    """Return a JSON document and its SHA-256 in hex, which must be `wanted` if that is known."""
    if (path := files(name)).stat().st_size > limits.max_document_bytes:
        raise LayerError(f"a document is larger than {limits.max_document_bytes} bytes")
    raw = path.read_bytes()
    if (digest := hashlib.sha256(raw).hexdigest()) != wanted and wanted:
        raise LayerError("a document's bytes are not those of its digest")
    return parse_document(raw, kind), digest


def parse_document(raw: bytes, kind: type = dict) -> Any:  # noqa: ANN401 - of that kind
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise LayerError("a document is not JSON that can be read") from error
    if not isinstance(document, kind):
        raise LayerError(f"a document is not a JSON {kind.__name__}")
    return document


def is_index(document: Mapping[str, Any]) -> bool:
    return str(document.get("mediaType")) in INDEX_TYPES or (
        "mediaType" not in document and "manifests" in document
    )


def instance_of(index: Mapping[str, Any], arch: str) -> str:
    for entry in _entries(index):
        platform = entry.get("platform")
        platform = platform if isinstance(platform, dict) else {}
        stated = (str(platform.get("os")), str(platform.get("architecture")))
        digest = str(entry.get("digest"))
        is_manifest = str(entry.get("mediaType")) in MANIFEST_TYPES and IMAGE_ID.fullmatch(digest)
        if is_manifest and stated == ("linux", arch):
            return digest
    raise LayerError(f"it is not made for linux/{arch}, as guests here are")


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


def image_in_archive(files: Files, limits: ImportLimits) -> ImageParts:
    listed, _ = read_document(files, "manifest.json", limits, kind=list)
    if len(listed) != 1 or not isinstance(image := listed[0], dict):
        raise _not_one(len(listed))
    tags, layers, config = (image.get(name) for name in ("RepoTags", "Layers", "Config"))
    if not isinstance(layers, list) or not all(isinstance(each, str) for each in (config, *layers)):
        raise LayerError("a document is broken: manifest.json")
    plain = tuple((posixpath.normpath(name), "") for name in (config, *layers))
    names = _names(tags if isinstance(tags, list) else [])
    return ImageParts(files=files, config=plain[0], layers=plain[1:], names=names)


def image_in_layout(files: Files, limits: ImportLimits) -> ImageParts:
    entries = _entries(read_document(files, "index.json", limits)[0])
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
        wanted = _hex(digest)
        nested, _ = read_document(files, f"blobs/sha256/{wanted}", limits, wanted=wanted)
        digests = (digest,)
        digest = instance_of(nested, debian_arch())
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
    manifest, _ = read_document(files, name, limits, wanted=_hex(wanted))
    if str(manifest.get("mediaType", next(iter(MANIFEST_TYPES)))) not in MANIFEST_TYPES:
        raise LayerError("its manifest is of a type that isn't taken")
    layers = manifest.get("layers")
    described = [manifest.get("config"), *(layers if isinstance(layers, list) else [None])]
    if not all(isinstance(each, dict) for each in described):
        raise LayerError("a document is broken: its manifest")
    for number, layer in enumerate(described[1:], 1):
        if _LAYER_TYPES.fullmatch(kind := str(layer.get("mediaType"))) is None:
            raise LayerError(f"layer {number} is of a type that isn't taken: {printable(kind)!r}")
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
    """Return the digits: no other text of a document enters paths."""
    if IMAGE_ID.fullmatch(digest) is None:
        raise LayerError("a digest is not a SHA-256")
    return digest.partition(":")[2]


# skopeo's words (containers-transports(5)).
_FILES: Final = ("oci-archive", "docker-archive")
_SERVICES: Final = ("docker-daemon", "docker")
# Times `stall_s` without a byte: a daemon packs a large image before it sends the first.
_DAEMON_STALLS: Final = 5
# As for Docker: what never leaves this machine may go without TLS.
_LOOPBACK: Final = re.compile(r"(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?")
# More than any of these programs needs for an image of any size: layers stream to the disk.
_MAX_DATA_BYTES: Final = 2 << 30
# Documents and headers beside an image's layers.
_SLACK_BYTES: Final = 64 << 20
# skopeo copies nothing without one; digests are checked here, whatever it says of signatures.
_TRUST_POLICIES: Final = (
    Path.home() / ".config/containers/policy.json",
    Path("/etc/containers/policy.json"),
)


@contextmanager
def fetched(
    ref: str, scratch: Path, limits: ImportLimits, report: Report = lambda _line: None
) -> Iterator[ImageParts]:
    """Fetch the image `ref` into a directory below `scratch`."""
    transport, _, rest = ref.partition(":")
    if not rest or transport not in (*_FILES, *_SERVICES):
        shown = printable(ref, max_chars=200)
        hint = f"write docker://{shown} for a registry's image; `belljar image import --help`"
        raise PolicyError(f"{shown!r} does not say where the image is", hint=hint)
    work = scratch / "fetch"
    work.mkdir(mode=0o700)
    if transport in _FILES:
        if not (path := Path(rest).absolute()).is_file():
            raise PolicyError("there is no such file", where=printable(rest))
        find = image_in_layout if transport == "oci-archive" else image_in_archive
        with files_of_archive(path, work, limits) as files:
            yield find(files, limits)
        return
    if transport == "docker":
        try:
            found = _copied(rest, work, limits, report)
        except HostError as error:
            # Its status is 1 for every failure, so skopeo's last message (logrus) is read.
            what = f"the image can't be fetched: {error.what.rpartition('level=fatal msg=')[2]}"
            hint = error.hint or "check the name, the network and the login"
            if "no space left on device" in error.what.lower():
                hint = HINT_SPACE
            raise HostError(what, where=printable(ref), hint=hint) from error
        yield found
        return
    name = _saved(rest, work, limits, report)
    with files_of_archive(work / "source", work, limits) as files:
        found = image_in_archive(files, limits)
        yield replace(found, names=(name,))


def _saved(rest: str, work: Path, limits: ImportLimits, report: Report) -> str:
    reference, failures = reference_of(rest), list[str]()
    name = reference.familiar
    patient = replace(limits, stall_s=_DAEMON_STALLS * limits.stall_s)
    # A program keeps what its daemon says, so its memory is bounded, too.
    bounded = [tool("prlimit"), f"--data={_MAX_DATA_BYTES}", "--core=0", "--"]
    env = plain_env(TMPDIR=str(work))
    # $DOCKER_HOST names a daemon that Podman doesn't ask.
    programs = ("docker",) if os.environ.get("DOCKER_HOST") else ("docker", "podman")
    for program in filter(shutil.which, programs):
        # By the whole name, for Podman takes a short one for an image that was built here.
        argv = [*bounded, program, "save", "--output", "source", reference.canonical]
        watch = _watch(work, printable(rest), patient, report)
        try:
            run_tool(argv, timeout_s=limits.timeout_s, env=env, cwd=work, watch=watch)
            return name
        except HostError as error:
            failures.append(f"{program}: {error.what}")
            (work / "source").unlink(missing_ok=True)
    what = "; ".join(failures) or "neither `docker` nor `podman` is installed"
    hint = "check DOCKER_HOST and the name (Podman: localhost/NAME for what was built here)"
    what = f"no daemon gave the image: {printable(what, max_chars=600)}"
    raise HostError(what, where=printable(f"docker-daemon:{name}"), hint=hint)


def _copied(rest: str, work: Path, limits: ImportLimits, report: Report) -> ImageParts:
    """Copy the image of the digest that a registry has for a name."""
    reference = reference_of(rest.removeprefix("//"))
    is_local = _LOOPBACK.fullmatch(reference.registry) is not None
    trust = [] if any(path.exists() for path in _TRUST_POLICIES) else ["--insecure-policy"]
    platform = ["--override-os", "linux", "--override-arch", debian_arch()]
    skopeo, env = [tool("skopeo"), "--tmpdir", str(work)], plain_env(TMPDIR=str(work))
    argv = [*skopeo, "inspect", "--raw", *(["--tls-verify=false"] if is_local else [])]
    argv.append(f"docker://{reference.untagged.canonical}")
    raw = run_tool(argv, timeout_s=limits.answer_s, env=env, cwd=work)
    top = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    if reference.digest and top != reference.digest:
        what = f"the registry gave a manifest of another digest: {top}"
        hint = "ask the registry's operator; nothing was kept"
        raise PolicyError(what, where=printable(reference.familiar), hint=hint)
    document = parse_document(raw)
    manifest = instance_of(document, debian_arch()) if is_index(document) else top
    copy = ["copy", "--quiet", *(["--src-tls-verify=false"] if is_local else [])]
    copy += [f"docker://{reference.registry}/{reference.path}@{manifest}", "dir:image"]
    argv, watch = [*skopeo, *trust, *platform, *copy], _watch(work, printable(rest), limits, report)
    run_tool(argv, timeout_s=limits.timeout_s, env=env, cwd=work, watch=watch)
    return image_of_manifest(
        (work / "image").joinpath,  # skopeo's own files, by names of checked digests
        "manifest.json",
        limits,
        wanted=manifest,
        names=(reference.untagged.familiar,),
        digests=(top,),
    )


def _watch(work: Path, ref: str, limits: ImportLimits, report: Report) -> Callable[[], None]:
    seen, changed_s = -1, monotonic()

    def check() -> None:
        nonlocal seen, changed_s
        try:
            total = sum(path.lstat().st_size for path in work.rglob("*"))
        except FileNotFoundError:  # it was renamed meanwhile: the next look is soon
            return
        if total > limits.max_bytes + _SLACK_BYTES:
            what = f"the image is larger than {format_size(limits.max_bytes)}"
            raise PolicyError(what, where=ref, hint="--max-size allows more")
        if total != seen:
            seen, changed_s = total, monotonic()
            report(f"fetching: {format_size(total)}")
        elif monotonic() - changed_s > limits.stall_s:
            why = f"nothing came for {format_duration(limits.stall_s)}, so it was given up"
            raise HostError(why)

    return check
