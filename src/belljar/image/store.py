"""The image store: images/<digest>/{rootfs.sqfs,image.json} and indexes of names and origins."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from belljar.dataclass import asdict, dataclass, field, fields, from_json, json_of, replace
from belljar.errors import HostError, PolicyError
from belljar.image.config import LATER, ImageConfig
from belljar.policy.reference import Reference, parse_reference
from belljar.store.home import make_store_dir, sync_file
from belljar.store.locks import locked
from belljar.store.scratch import remove_tree, retire, scratch_dir
from belljar.units import printable

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# Images that Belljar makes, and their commands.
MADE_HERE: Final = {
    "default": "belljar setup",
    "debian-dev": "belljar image build debian-dev",
    "inspect": "belljar image build inspect",
}
# Of llama.cpp's server; anybody's image may have that name.
MODEL_IMAGE: Final = "llama-cpp"
# Of a configuration: an image's document always has these, in this order below its seal.
_ALWAYS: Final = ("env", "user", "workdir", "entrypoint", "cmd")
# mksquashfs pads its files to such blocks, which a drive or loop device needs.
_SEAL_BYTES: Final = 4096
# The fate of an image's set-user-ID bits at its import.
SetuidPrograms: TypeAlias = Literal["", "kept", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image(ImageConfig):
    """`origins` are digests of documents that it was imported from."""

    digest: str
    names: tuple[str, ...]
    rootfs: Path
    size_bytes: int
    created: str = ""
    source: str = ""
    origins: tuple[str, ...] = ()
    built: Mapping[str, Any] = field(default_factory=dict)
    setuid_programs: SetuidPrograms = ""
    high_owner: str = ""

    @property
    def config(self) -> ImageConfig:
        return ImageConfig(**{part.name: getattr(self, part.name) for part in fields(ImageConfig)})


class Store:
    def __init__(self, home: Path) -> None:
        self.home = home
        self._images = home / "images"
        self._names_file = home / "image-names.json"
        self._digests_file = home / "image-digests.json"

    def find(self, ref: str) -> Image:
        """Return the image of a reference (without its tag if it has a digest) or a digest."""
        names, origins = self._indexes()
        reference = _parsed(ref)
        if reference is not None and reference.digest:
            digest = origins.get(reference.digest, "")
        else:
            name = reference.familiar if reference else ref
            digest = names.get(name) or origins.get(ref) or ref.removeprefix("sha256:")
        is_digest = _DIGEST.fullmatch(digest or "") is not None
        if not is_digest or not (self._images / digest / "image.json").exists():
            raise self._missing(ref)
        return _read(self._images / digest, names, origins)

    def list(self) -> tuple[Image, ...]:
        names, origins = self._indexes()
        found = []
        entries = os.listdir(self._images) if self._images.is_dir() else ()  # noqa: PTH208
        for digest in filter(_DIGEST.fullmatch, entries):
            try:
                found.append(_read(self._images / digest, names, origins))
            except HostError:
                if (self._images / digest).exists():  # else it was removed meanwhile
                    raise
        return tuple(sorted(found, key=lambda each: (not each.names, each.names[:1], each.digest)))

    def add(
        self,
        rootfs: Path,
        config: ImageConfig,
        *,
        name: str,
        more_names: Sequence[str] = (),
        origins: Sequence[str] = (),
        **facts: Any,  # noqa: ANN401 - further fields of `Image`
    ) -> Image:
        """Take `rootfs`; names and `origins` move from the images that had them."""
        called = [check_name(each, origins=origins) for each in (name, *more_names)]
        rootfs.chmod(0o600)
        with rootfs.open("ab") as file:  # a block of its own for the configuration's hash
            file.write(bytes(-file.tell() % _SEAL_BYTES))
            file.write(_seal_of(config).ljust(_SEAL_BYTES, b"\0"))
        rootfs.chmod(0o444)
        digest = file_sha256(rootfs)
        document = {"version": 1, "digest": digest, "created": "", "source": ""}
        document["size_bytes"] = rootfs.stat().st_size
        more = {**facts, **json_of(config)}
        document |= {name: value for name, value in more.items() if value or name in _ALWAYS}
        return self._enter(rootfs, document, called, origins)

    def adopt(self, directory: Path, *, names: Sequence[str], origins: Sequence[str] = ()) -> Image:
        """Raise `HostError` for bytes of another digest."""
        called = [check_name(each, origins=origins) for each in names]
        image = _read(directory, {}, {})
        verify(image)
        document = json.loads((directory / "image.json").read_bytes())
        return self._enter(image.rootfs, {**document, "digest": image.digest}, called, origins)

    def _enter(
        self,
        rootfs: Path,
        document: Mapping[str, Any],
        called: Sequence[str],
        origins: Sequence[str],
    ) -> Image:
        digest = str(document["digest"])
        with locked(self.home, "images"):
            final = self._images / digest
            make_store_dir(self._images)
            if not final.exists():
                with scratch_dir(self.home) as scratch:
                    whole = scratch / digest
                    whole.mkdir(mode=0o755)
                    self._write(whole / "image.json", document, mode=0o444)
                    rootfs.replace(whole / "rootfs.sqfs")
                    whole.joinpath("rootfs.sqfs").chmod(0o444)
                    sync_file(whole / "rootfs.sqfs")
                    whole.chmod(0o711)
                    whole.replace(final)
            elif "built" in document:  # the same bytes by another recipe: the newest is remembered
                self._write(final / "image.json", document, mode=0o444)
            names, known = self._indexes()
            names |= dict.fromkeys(called, digest)
            known |= dict.fromkeys(origins, digest)
            self._write(self._digests_file, known)
            self._write(self._names_file, names)
            return _read(final, names, known)

    def remove(self, ref: str) -> Image:
        with locked(self.home, "images"):
            image, (names, origins) = self.find(ref), self._indexes()
            reference = _parsed(ref)
            is_name = reference is not None and reference.familiar in names
            dropped = {reference.familiar} if reference and is_name else {*image.names}
            kept = {name: names[name] for name in names.keys() - dropped}
            self._write(self._names_file, kept)
            if dropped.issuperset(image.names):
                remove_tree(retire(self._images / image.digest))
                kept = {name: of for name, of in origins.items() if of != image.digest}
                self._write(self._digests_file, kept)
            return image

    def name(self, image: Image, name: str) -> Image:
        """Raise `HostError` for a removed image."""
        name = check_name(name)
        with locked(self.home, "images"):
            if not (self._images / image.digest).exists():
                raise self._missing(name)
            self._write(self._names_file, self._indexes()[0] | {name: image.digest})
        return replace(image, names=tuple(sorted({*image.names, name})))

    def missing(self, ref: str) -> HostError | None:
        try:
            self.find(ref)
        except HostError as error:
            return error
        return None

    def _indexes(self) -> tuple[dict[str, str], dict[str, str]]:
        found = list[dict[str, str]]()
        for file in (self._names_file, self._digests_file):
            try:
                index = json.loads(file.read_bytes()) if file.exists() else {}
                found.append({str(key): str(digest) for key, digest in index.items()})
            except (OSError, ValueError, AttributeError) as error:
                raise _damaged(file) from error
        return found[0], found[1]

    def _write(self, file: Path, document: Mapping[str, Any], *, mode: int = 0o644) -> None:
        with scratch_dir(self.home) as scratch:
            written = scratch / file.name
            written.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
            written.chmod(mode)
            sync_file(written)
            written.replace(file)

    def _missing(self, ref: str) -> HostError:
        hint = f"run `{command_for(ref)}` to get it, or `belljar image ls` to list what is there"
        what = f"image `{printable(ref)}` isn't in the store"
        return HostError(what, where=str(self._images), hint=hint)


def _damaged(path: Path) -> HostError:
    what = "the image store is damaged: this file can't be read"
    return HostError(what, where=str(path), hint="remove it and run `belljar setup`")


def command_for(ref: str) -> str:
    if ref in MADE_HERE:
        return MADE_HERE[ref]
    if ref == MODEL_IMAGE:
        return "belljar model image"
    reference = _parsed(ref)
    name = reference.untagged.familiar if reference else "REGISTRY/NAME:TAG"
    return f"belljar image import docker://{name}"


def verify(image: Image) -> None:
    """Hash bytes and configuration again. Raises `HostError`."""
    with image.rootfs.open("rb") as file:
        file.seek(max(0, image.rootfs.stat().st_size - _SEAL_BYTES))
        sealed = file.read(hashlib.sha256().digest_size)
    if file_sha256(image.rootfs) != image.digest or sealed != _seal_of(image.config):
        what = "the image's bytes are not those of its digest: it was changed, or the disk fails"
        hint = f"`belljar image rm {image.digest}`, then build or import it again"
        raise HostError(what, where=str(image.rootfs), hint=hint)


def check_name(name: str, *, origins: Sequence[str] = ()) -> str:
    """Raise `PolicyError` for a digest that is not among `origins`."""
    reference = reference_of(name)
    if reference.digest and reference.digest not in origins:
        raise PolicyError("it was not imported by this digest", where=printable(name))
    return reference.familiar


def reference_of(text: str) -> Reference:
    try:
        return parse_reference(text)
    except ValueError as error:
        hint = "give a name such as `team/tools:1`"
        raise PolicyError(str(error), where=printable(text), hint=hint) from error


def _parsed(ref: str) -> Reference | None:
    try:
        return parse_reference(ref)
    except ValueError:
        return None


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal_of(config: ImageConfig) -> bytes:
    values = asdict(config)
    parts: list[Any] = [sorted(values["env"].items()), *(values[name] for name in _ALWAYS[1:])]
    if later := sorted((name, values[name]) for name in LATER if values[name]):
        parts.append(later)
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).digest()


def _read(directory: Path, names: Mapping[str, str], origins: Mapping[str, str]) -> Image:
    digest, rootfs, file = directory.name, directory / "rootfs.sqfs", directory / "image.json"
    try:
        document = json.loads(file.read_bytes())
        if rootfs.stat().st_size != document["size_bytes"]:
            raise ValueError("size differs")
        known = {each.name: document[each.name] for each in fields(Image) if each.name in document}
        known |= {
            "digest": digest,
            "rootfs": str(rootfs),
            "names": sorted(name for name, named in names.items() if named == digest),
            "origins": sorted(origin for origin, of in origins.items() if of == digest),
        }
        return cast("Image", from_json(Image, known))
    # Of another store, it may be nested deeper than the parser goes.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(file) from error


class MissingImage(NamedTuple):
    image: str
    why: HostError
    command: str


def missing_images(store: Store, images: Iterable[str]) -> tuple[MissingImage, ...]:
    found = ((image, store.missing(image)) for image in dict.fromkeys(images))
    return tuple(MissingImage(image, why, command_for(image)) for image, why in found if why)


def find_images(store: Store, images: Iterable[str]) -> dict[str, Image]:
    """Raise one `HostError` that lists all missing images."""
    names = tuple(dict.fromkeys(images))
    refuse_missing(missing_images(store, names))
    return {name: store.find(name) for name in names}


def refuse_missing(missing: tuple[MissingImage, ...]) -> None:
    if not missing:
        return
    if len(missing) == 1:
        raise missing[0].why
    listed = "".join(f"\n  {each.why.what}: `{each.command}`" for each in missing)
    hint = "run these commands; one `belljar image import` takes several sources"
    what = f"{len(missing)} images are missing{listed}"
    raise HostError(what, where=missing[0].why.where, hint=hint)
