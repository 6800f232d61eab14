"""A bundle's manifest: what it holds, by digest and name, signed. Reading and checking a bundle.

A bundle is a plain directory. It may come from anyone: every name is checked, files are opened
below the directory without following links, and what the manifest doesn't name is refused.

    SHA256SUMS  manifest.json  manifest.sig  install.sh  and the items, by path
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias, get_args

from belljar.dataclass import dataclass
from belljar.errors import BelljarError, HostError, PolicyError
from belljar.ledger.keys import SigningKey, fingerprint_of, signature_is_good
from belljar.ledger.kinds import HEX64, check_shape, count, exactly, matching, objects, one_of, text
from belljar.units import printable

MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.sig"
SUMS: Final = "SHA256SUMS"
SCRIPT: Final = "install.sh"
VERSION: Final = 1
_SIGNED: Final = b"belljar bundle 1\n"
"""Before the manifest's bytes, so that no other signature of the key fits."""
_MAX_MANIFEST_BYTES: Final = 64 << 20
_MAX_SIGNATURE_BYTES: Final = 4096
_MAX_ITEMS: Final = 200_000
_CHUNK_BYTES: Final = 1 << 20
# No component begins with a dot or a dash, so none is `..` or an option.
_PATH: Final = (
    r"[A-Za-z0-9_][A-Za-z0-9._+~%=@,-]{0,199}(?:/[A-Za-z0-9_][A-Za-z0-9._+~%=@,-]{0,199}){0,15}"
)
_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
_WORD: Final = r"[A-Za-z0-9._+-]{1,64}"

ItemKind: TypeAlias = Literal[
    "script", "debian", "python", "kernel", "image", "weights", "docs", "examples"
]
Report: TypeAlias = Callable[[str], None]


class BundleError(PolicyError):
    """A bundle that is not what it should be; nothing of it was installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One file. `name`: the thing that it is, or is a part of."""

    kind: str
    name: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`arch`, `system` and `python`: the only hosts it is for. `digest`: of `SHA256SUMS`."""

    created: str
    belljar: str
    arch: str
    system: str
    python: str
    items: tuple[Item, ...]
    digest: str = ""
    signer: str = ""

    @property
    def size_bytes(self) -> int:
        """Of all items."""
        return sum(item.size for item in self.items)

    def of(self, kind: ItemKind) -> tuple[Item, ...]:
        """The items of a kind."""
        return tuple(item for item in self.items if item.kind == kind)


_SHAPE: Final = {
    "v": exactly(VERSION),
    "created": matching(_TIME),
    "belljar": matching(_WORD),
    "arch": matching(_WORD),
    "system": matching(_WORD),
    "python": matching(r"[0-9]+\.[0-9]+"),
    "items": objects(
        {
            "kind": one_of(*get_args(ItemKind)),
            "name": text,
            "path": matching(_PATH),
            "size": count,
            "sha256": HEX64,
        },
        max_items=_MAX_ITEMS,
    ),
}


def encode(manifest: Manifest) -> bytes:
    """The manifest's bytes, which are signed."""
    document = {"v": VERSION, **asdict(manifest)}
    del document["digest"], document["signer"]
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def sums(items: Iterable[Item], encoded: bytes) -> bytes:
    """`SHA256SUMS` of the items and the manifest, for sha256sum(1) on a host without Belljar.

    Its digest is what people compare: it covers everything else.
    """
    lines = [f"{item.sha256}  {item.path}\n" for item in items]
    lines.append(f"{hashlib.sha256(encoded).hexdigest()}  {MANIFEST}\n")
    return "".join(lines).encode()


def sign(encoded: bytes, key: SigningKey) -> bytes:
    """The signature's file."""
    signature = {"public_key": key.public_key, "signature": key.sign(_SIGNED + encoded)}
    return json.dumps(signature, sort_keys=True).encode() + b"\n"


def parse(encoded: bytes, signature: bytes, *, expected_key: str | None) -> Manifest:
    """A manifest that its key has signed. `expected_key`: the fingerprint it must have.

    Raises `BundleError`.
    """
    try:
        signed = json.loads(signature)
        check_shape(signed, {"public_key": HEX64, "signature": matching("[0-9a-f]{128}")})
    except (ValueError, RecursionError) as error:
        raise _bad("the signature can't be read", SIGNATURE) from error
    signer = fingerprint_of(signed["public_key"])
    if not signature_is_good(signed["public_key"], signed["signature"], _SIGNED + encoded):
        raise _bad("the manifest is not what was signed", MANIFEST)
    if expected_key is not None and signer != expected_key:
        what = f"another key has signed it: {signer}"
        hint = "ask who made it; if that is right, give this key by --key"
        raise BundleError(what, where=SIGNATURE, hint=hint)
    try:
        document = json.loads(encoded)
        check_shape(document, _SHAPE)
    except (ValueError, RecursionError) as error:
        raise _bad(f"the manifest can't be read: {error}", MANIFEST) from error
    items = tuple(Item(**item) for item in document.pop("items"))
    paths = [item.path.casefold() for item in items]
    if len({*paths, MANIFEST, SIGNATURE.casefold(), SUMS.casefold()}) != len(paths) + 3:
        raise _bad("the manifest names a path twice", MANIFEST)
    del document["v"]
    digest = hashlib.sha256(sums(items, encoded)).hexdigest()
    return Manifest(**document, items=items, digest=digest, signer=signer)


def _bad(what: str, where: str) -> BundleError:
    hint = "don't use it: copy the bundle again, and compare its digest with what `create` printed"
    return BundleError(what, where=printable(where), hint=hint)


class Bundle:
    """An open bundle; every file is opened below its directory, without following links."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        try:
            self._fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise BundleError(
                f"it can't be opened: {error.strerror}",
                where=printable(str(directory)),
                hint="give the directory that `belljar bundle create` made",
            ) from error

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def manifest(self, expected_key: str | None) -> Manifest:
        """The signed manifest. Raises `BundleError`."""
        encoded = self._small(MANIFEST, _MAX_MANIFEST_BYTES)
        found = parse(
            encoded, self._small(SIGNATURE, _MAX_SIGNATURE_BYTES), expected_key=expected_key
        )
        if self._small(SUMS, _MAX_MANIFEST_BYTES) != sums(found.items, encoded):
            raise _bad("it is not what the manifest says", SUMS)
        return found

    def verify(self, manifest: Manifest, report: Report) -> None:
        """Hash every item, and refuse every other file. Raises `BundleError`."""
        self._refuse_others(manifest)
        for number, item in enumerate(manifest.items, 1):
            report(f"{number}/{len(manifest.items)} {item.path}")
            self.copy(item, None)

    def copy(self, item: Item, target: Path | None) -> None:
        """Copy an item to a new file while it is hashed; None: only hash it.

        Raises `BundleError` when its bytes aren't the manifest's; then there is no new file.
        """
        digest, left = hashlib.sha256(), item.size
        with self._opened(item.path) as source, _new_file(target) as copy:
            while chunk := source.read(min(_CHUNK_BYTES, left + 1)):
                left -= len(chunk)
                if left < 0:
                    break
                digest.update(chunk)
                if copy is not None:
                    copy.write(chunk)
        if left or digest.hexdigest() != item.sha256:
            if target is not None:
                target.unlink()
            size = "it is shorter" if left > 0 else "it is longer" if left < 0 else "it was changed"
            raise _bad(f"it is not what was signed: {size}", item.path)

    def _refuse_others(self, manifest: Manifest) -> None:
        known = {item.path for item in manifest.items} | {MANIFEST, SIGNATURE, SUMS}
        folders = {str(parent) for path in known for parent in Path(path).parents} - {"."}
        for folder, below, files in os.walk(f"/proc/self/fd/{self._fd}/"):
            inside = os.path.relpath(folder, f"/proc/self/fd/{self._fd}/")
            prefix = "" if inside == "." else f"{inside}/"
            for name in [*files, *below]:
                path = f"{prefix}{name}"
                if path not in (folders if name in below else known):
                    raise _bad("the manifest does not name it", path)

    def _small(self, path: str, max_bytes: int) -> bytes:
        with self._opened(path) as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise _bad("it is too long", path)
        return content

    @contextmanager
    def _opened(self, path: str) -> Iterator[BinaryIO]:
        *folders, name = path.split("/")
        held = [self._fd]
        try:
            try:
                for folder in folders:
                    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    held.append(os.open(folder, flags, dir_fd=held[-1]))
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(name, flags, dir_fd=held[-1])
            except OSError as error:
                raise _bad(f"it can't be opened: {error.strerror}", path) from error
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise _bad("it is not a plain file", path)
                try:
                    yield file
                except BelljarError:
                    raise
                except OSError as error:
                    if error.filename is not None:
                        raise
                    raise HostError(
                        f"it can't be read or copied: {error.strerror}", where=path
                    ) from error
        finally:
            for descriptor in held[1:]:
                os.close(descriptor)


@contextmanager
def _new_file(target: Path | None) -> Iterator[BinaryIO | None]:
    if target is None:
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("xb") as file:
            yield file
    except BaseException:
        target.unlink(missing_ok=True)
        raise
