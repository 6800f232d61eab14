"""Reads, verifies and installs a bundle.

A bundle is a plain directory. `SHA256SUMS` is its manifest: the digest and the path of each file.
`SHA256SUMS.sig` signs that, and `bundle.json`, one of the files, has the names of images and
weights, and the kind of host. A bundle may come from anyone: what the manifest doesn't list is
refused, and what is installed is a copy that was hashed while it was made.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from belljar.dataclass import dataclass
from belljar.descriptors import open_plain_file
from belljar.errors import HostError, PolicyError
from belljar.image.config import debian_arch
from belljar.image.kernel import adopt_kernel
from belljar.image.store import Store
from belljar.image.tools import run_logged, tool
from belljar.ledger.keys import SigningKey, fingerprint_of, signature_is_good
from belljar.ledger.kinds import check_shape, exactly, matching, objects, shape_of
from belljar.model.weights import add_weights
from belljar.store.home import need_space
from belljar.store.locks import locked
from belljar.store.scratch import scratch_dir
from belljar.units import printable

SUMS: Final = "SHA256SUMS"
SIGNATURE: Final = "SHA256SUMS.sig"
ABOUT: Final = "bundle.json"
SCRIPT: Final = "install.sh"
INSTALLED: Final = "bundle.json"  # in the store: what was installed last
SHARE: Final = "share"
# No component begins with a dot or a dash, so none is `..` or an option.
_PART: Final = "[A-Za-z0-9_][A-Za-z0-9._+~%=@,-]*"
PATH: Final = re.compile(f"{_PART}(?:/{_PART})*")
_LINE: Final = re.compile(f"([0-9a-f]{{64}})  ({PATH.pattern})")
_SIGNATURE: Final = re.compile("([0-9a-f]{64}) ([0-9a-f]{128})\n")  # public key, Ed25519
_SIGNED: Final = b"belljar bundle 1\n"  # so that no other signature of the key fits
# Manifest and names are read whole, before their signature is known to be good.
_MAX_READ_BYTES: Final = 64 << 20
# A medium is read at its full speed, and weights of gigabytes never fill the memory.
_CHUNK_BYTES: Final = 1 << 20
_ABOUT: Final = shape_of(
    "v:version created:time belljar:word arch:word system:word python:word size_bytes:count "
    "kernel:sha256 images:images weights:weights",
    version=exactly(1),
    time=matching(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"),
    word=matching(r"[A-Za-z0-9._+-]{1,64}"),
    images=objects(shape_of("digest:sha256 names:texts origins:texts")),
    weights=objects(shape_of("digest:sha256 name:part", part=matching(_PART))),
)
_HINT: Final = "don't use it: copy the bundle again, and compare its digest with what `create` said"

Report: TypeAlias = Callable[[str], None]


class BundleError(PolicyError):
    """A bundle that is not as it should be; nothing of it was installed."""


def _bad(what: str, where: str) -> BundleError:
    return BundleError(what, where=printable(where), hint=_HINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle whose signature is good; `digests` by path, `digest` of `SHA256SUMS`."""

    path: Path
    digests: Mapping[str, str]
    about: Mapping[str, Any]
    digest: str
    signer: str

    def verify(self, report: Report, *, into: Path | None = None) -> None:
        """Hash every file, and refuse others. `into`: keep a copy of what was hashed.

        Raises `BundleError`, `HostError`.
        """
        known = {*self.digests, SUMS, SIGNATURE}
        for each in self.path.rglob("*"):
            name = each.relative_to(self.path).as_posix()
            if name not in known and (each.is_symlink() or not each.is_dir()):
                raise _bad("the manifest does not name it", name)
        for number, (name, expected) in enumerate(self.digests.items(), 1):
            report(f"{number}/{len(self.digests)} {name}")
            with _opened(self.path, name) as source:
                try:
                    digest = hashed_copy(source, into / name if into else Path(os.devnull))
                except OSError as error:
                    what, hint = f"it can't be read or copied: {error.strerror}", "check both disks"
                    raise HostError(what, where=name, hint=hint) from error
            if digest != expected:
                raise _bad("it is not what was signed", name)
        if into:  # install.sh goes by it
            (into / SUMS).write_bytes(_manifest(self.digests))


def hashed_copy(source: BinaryIO, target: Path) -> str:
    """Copy a file; return the SHA-256 of what was read. Raises `OSError`."""
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as copy:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    return digest.hexdigest()


def _opened(path: Path, name: str) -> BinaryIO:
    try:
        return open_plain_file(path / name)
    except OSError as error:
        raise _bad(f"it can't be opened: {error.strerror}", name) from error


def _read(path: Path, name: str) -> bytes:
    with _opened(path, name) as file:
        return file.read(_MAX_READ_BYTES)


def _manifest(digests: Mapping[str, str]) -> bytes:
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()


def write_manifest(path: Path, digests: Mapping[str, str], key: SigningKey) -> None:
    """Write and sign the manifest of a bundle."""
    listed = _manifest(digests)
    (path / SUMS).write_bytes(listed)
    (path / SIGNATURE).write_text(f"{key.public_key} {key.sign(_SIGNED + listed)}\n")


def open_bundle(path: Path, *, expected_key: str | None) -> Bundle:
    """Open a bundle that its key has signed. `expected_key`: the fingerprint it must have.

    Raises `BundleError`.
    """
    listed = _read(path, SUMS)
    signed = _SIGNATURE.fullmatch(_read(path, SIGNATURE).decode("ascii", "replace"))
    if not (signed and signature_is_good(signed[1], signed[2], _SIGNED + listed)):
        raise _bad("it is not what was signed", SUMS)
    signer = fingerprint_of(signed[1])
    if expected_key is not None and signer != expected_key:
        what = f"another key has signed it: {signer}"
        hint = "ask who made it; if that is right, give this key by --key"
        raise BundleError(what, where=SIGNATURE, hint=hint)
    lines = listed.decode("ascii", "replace").removesuffix("\n").split("\n")
    found = [_LINE.fullmatch(line) for line in lines]
    digests = {each[2]: each[1] for each in found if each}
    if len(digests) != len(lines) or ABOUT not in digests:
        raise _bad("a line is no digest and path, or names a path twice", SUMS)
    encoded = _read(path, ABOUT)
    if hashlib.sha256(encoded).hexdigest() != digests[ABOUT]:
        raise _bad("it is not what was signed", ABOUT)
    try:
        about = json.loads(encoded)
        check_shape(about, _ABOUT)
    except (ValueError, RecursionError) as error:
        raise _bad(f"it can't be read: {error}", ABOUT) from error
    digest = hashlib.sha256(listed).hexdigest()
    return Bundle(path=path, digests=digests, about=about, digest=digest, signer=signer)


def installed(home: Path) -> dict[str, str]:
    """The creation time, digest and signer of the bundle that was installed last."""
    try:
        found = json.loads((home / INSTALLED).read_bytes())
        return {name: str(found[name]) for name in ("created", "digest", "signer")}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostError("it can't be read", where=str(home / INSTALLED)) from error


def host_kind(python: str) -> dict[str, str]:
    """What the wheels, packages and kernel of a bundle must fit."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    return {"arch": debian_arch(), "system": codename, "python": python}


def check_host(about: Mapping[str, Any]) -> None:
    """Raise `HostError` if the bundle is for another kind of host."""
    for name, here in host_kind("{}.{}".format(*sys.version_info)).items():
        if about[name] != here:
            what = f"the bundle is for {name} {about[name]}, and this host has {here or 'another'}"
            raise HostError(what, hint="create it on a host like this one")


def install_bundle(
    home: Path, path: Path, *, expected_key: str, packages: bool, allow_older: bool, report: Report
) -> Bundle:
    """Install all of a bundle; call it again after an interruption.

    `packages`: also Debian's and Python's, as root; these come last, as they replace this program.
    Raises `BundleError`, `HostError`; before anything is installed if the bundle has a fault.
    """
    bundle = open_bundle(path, expected_key=expected_key)
    about = bundle.about
    check_host(about)
    if not allow_older and about["created"] < (before := installed(home).get("created", "")):
        what = f"a newer bundle is installed: {before}, this one {about['created']}"
        raise BundleError(what, hint="--allow-older installs it all the same")
    if packages and os.geteuid() != 0:
        hint = "run it as root, or with --no-packages"
        raise HostError("only root can install Debian packages", hint=hint)
    need_space(home, about["size_bytes"] + (256 << 20), "the bundle")
    with locked(home, "bundle"), scratch_dir(home) as scratch:
        copy = scratch / "bundle"  # install.sh refuses what else is in it
        bundle.verify(report, into=copy)
        report("installing")
        _install_store(home, copy, about)
        if packages:
            argv = [tool("sh"), str(copy / SCRIPT), "--packages", sys.prefix]
            log = home / "bundle.log"
            run_logged(argv, log=log, on_line=report)
        facts = {"created": about["created"], "digest": bundle.digest, "signer": bundle.signer}
        (copy / INSTALLED).write_text(json.dumps(facts) + "\n")
        (copy / INSTALLED).replace(home / INSTALLED)
    return bundle


def _install_store(home: Path, copy: Path, about: Mapping[str, Any]) -> None:
    """Kernel, images, weights, documentation: each by a rename; what is there already is kept."""
    adopt_kernel(home, copy / "kernels" / about["kernel"])
    for image in about["images"]:
        folder = copy / "images" / image["digest"]
        Store(home).adopt(folder, names=image["names"], origins=image["origins"])
    for weights in about["weights"]:
        add_weights(copy / "weights" / weights["digest"] / weights["name"], home=home)
    (copy / SHARE).chmod(0o755)
    if (home / SHARE).exists():
        (home / SHARE).replace(copy.with_name("replaced"))
    (copy / SHARE).replace(home / SHARE)
