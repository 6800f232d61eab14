"""Bundles, which carry an installation to a host without a network.

`SHA256SUMS` is the manifest of a directory, `SHA256SUMS.sig` signs it, `bundle.json` names images,
weights and the kind of host. A bundle may come from anyone: unlisted files are refused, and the
installed copy was hashed while it was made.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final

from belljar.dataclass import dataclass
from belljar.descriptors import open_plain_file
from belljar.errors import HostError, PolicyError
from belljar.image.build import PrivateApt, debian_sources, host_sources
from belljar.image.config import debian_arch
from belljar.image.kernel import REQUIRED_MODULES, adopt_kernel, current_kernel
from belljar.image.store import Store, file_sha256, verify
from belljar.image.tools import Report, run_logged, run_tool, tool
from belljar.ledger.keys import SigningKey, fingerprint_of, load_or_make_key, signature_is_good
from belljar.ledger.kinds import check_shape, exactly, matching, objects, shape_of
from belljar.model.weights import add_weights, find_weights, verify_weights
from belljar.package import __version__
from belljar.store.home import need_space
from belljar.store.locks import locked
from belljar.store.scratch import remove_tree, scratch_dir
from belljar.units import format_size, iso_time, printable

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


class BundleError(PolicyError):
    """A faulty bundle; nothing of it was installed."""


def _bad(what: str, where: str) -> BundleError:
    return BundleError(what, where=printable(where), hint=_HINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle with a good signature."""

    path: Path
    digests: Mapping[str, str]
    about: Mapping[str, Any]
    digest: str
    signer: str

    def verify(self, report: Report, *, into: Path | None = None) -> None:
        """Hash every file; refuse others. `into` gets a copy."""
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
    """Return the SHA-256 of the read bytes. Raises `OSError`."""
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
    listed = _manifest(digests)
    (path / SUMS).write_bytes(listed)
    (path / SIGNATURE).write_text(f"{key.public_key} {key.sign(_SIGNED + listed)}\n")


def open_bundle(path: Path, *, expected_key: str | None) -> Bundle:
    """Open a bundle signed by the key of fingerprint `expected_key`."""
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
    try:
        found = json.loads((home / INSTALLED).read_bytes())
        return {name: str(found[name]) for name in ("created", "digest", "signer")}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostError("it can't be read", where=str(home / INSTALLED)) from error


def host_kind(python: str) -> dict[str, str]:
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    return {"arch": debian_arch(), "system": codename, "python": python}


def check_host(about: Mapping[str, Any]) -> None:
    for name, here in host_kind("{}.{}".format(*sys.version_info)).items():
        if about[name] != here:
            what = f"the bundle is for {name} {about[name]}, and this host has {here or 'another'}"
            raise HostError(what, hint="create it on a host like this one")


def install_bundle(
    home: Path, path: Path, *, expected_key: str, packages: bool, allow_older: bool, report: Report
) -> Bundle:
    """Install all of a bundle; after an interruption it can be called again.

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
            run_logged(argv, log=log)
        facts = {"created": about["created"], "digest": bundle.digest, "signer": bundle.signer}
        (copy / INSTALLED).write_text(json.dumps(facts) + "\n")
        (copy / INSTALLED).replace(home / INSTALLED)
    return bundle


def _install_store(home: Path, copy: Path, about: Mapping[str, Any]) -> None:
    """Rename everything into place; what exists is kept, but documentation."""
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


_BACKPORTS: Final = "bookworm-backports"
_PYTHON: Final = "/usr/bin/python3"  # Debian's: the wheels must fit it, not this process
_VERSION: Final = "import sys; print('%d.%d' % sys.version_info[:2])"
_REST_BYTES: Final = 1 << 30  # of Debian's and Python packages
_TOOLS: Final = "inspect_ai/binaries/inspect-sandbox-tools-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """`newer` are packages from backports on Debian 12; `weights` are digests in the store.

    `lock` has exact versions with hashes. `checkout` is Belljar's source, with documentation and
    examples.
    """

    images: tuple[str, ...]
    packages: tuple[str, ...]
    newer: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    lock: Path
    checkout: Path


def create_bundle(home: Path, out: Path, wanted: Contents, *, report: Report) -> Bundle:
    if os.path.lexists(out):
        hint = "give another name; a newer bundle installs over an older one"
        raise PolicyError("something is there already", where=printable(str(out)), hint=hint)
    files, about = store_files(home, wanted)
    if not (Path(_PYTHON).exists() and host_kind("")["system"]):
        raise HostError("a bundle is made on Debian with its python3, and this host lacks it")
    key = load_or_make_key(home)
    with _part(home, out) as part, scratch_dir(home) as scratch:
        own_bytes = sum(file.stat().st_size for file in files.values())
        report(f"{format_size(own_bytes)} of this store, and Debian's and Python packages")
        need_space(
            part, own_bytes + _REST_BYTES, "the bundle", hint="give a place on a larger disk"
        )
        digests = {name: _copy(file, part / name, report) for name, file in files.items()}
        wheels = _wheels(scratch / "wheels", wanted, report)
        digests |= {name: _copy(file, part / name, report) for name, file in wheels.items()}
        report("Debian packages")
        digests |= _debian_packages(scratch / "apt", wanted, part / "debian")
        about |= {
            "v": 1,
            "created": iso_time(time.time()),
            "belljar": __version__,
            **host_kind(run_tool([_PYTHON, "-c", _VERSION], timeout_s=60).decode().strip()),
            "size_bytes": sum((part / name).stat().st_size for name in digests),
        }
        texts = {"key.txt": f"{key.fingerprint}\n", ABOUT: json.dumps(about, indent=1) + "\n"}
        digests |= _write(part, texts)
        write_manifest(part, digests, key)
        os.sync()
        bundle = open_bundle(part, expected_key=key.fingerprint)
        report("verifying")
        bundle.verify(lambda _line: None)
        part.rename(out)
    return replace(bundle, path=out)


# --- the store and the checkout


def store_files(home: Path, wanted: Contents) -> tuple[dict[str, Path], dict[str, Any]]:
    missing, files = list[str](), dict[str, Path]()
    about: dict[str, Any] = {"images": [], "weights": []}

    @contextmanager
    def named_if_missing(what: str = "") -> Iterator[None]:
        try:
            yield
        except HostError as error:
            missing.append(f"{what}{error.what} ({error.hint})")

    for ref in dict.fromkeys(wanted.images):
        with named_if_missing():
            image = Store(home).find(ref)
            verify(image)
            files |= _tree(image.rootfs.parent, f"images/{image.digest}")
            named = {"names": [*image.names], "origins": [*image.origins]}
            about["images"].append({"digest": image.digest, **named})
    for ref in dict.fromkeys(wanted.weights):
        with named_if_missing():
            weights = find_weights(ref, home=home)
            verify_weights(weights)
            if not PATH.fullmatch(weights.name):
                what = f"a bundle can't hold the name of the weights {weights.name!r}"
                raise HostError(what, hint="rename them and add them again")
            inside = f"/{weights.name}" if weights.is_directory else ""
            files |= _tree(weights.path / "data", f"weights/{weights.digest}{inside}")
            about["weights"].append({"digest": weights.digest, "name": weights.name})
    with named_if_missing():
        kernel = current_kernel(home)
        if kernel.wanted != REQUIRED_MODULES:
            missing.append("the guest kernel lacks modules (run `belljar setup`)")
        about["kernel"] = kernel.digest
        files |= _tree(kernel.vmlinuz.parent, f"kernels/{kernel.digest}")
    for kind in ("docs", "examples"):
        with named_if_missing(f"{kind}: "):
            # What git doesn't know stays here: notes, keys, what an example has written
            argv = [tool("git"), "-C", str(wanted.checkout), "ls-files", "-z", kind]
            known = run_tool(argv, timeout_s=60).decode().split("\0")[:-1]
            if not known:
                missing.append(f"{kind}: git knows no file of them in {wanted.checkout}")
            files |= {f"{SHARE}/{each}": _plain(wanted.checkout / each, each) for each in known}
    files[SCRIPT] = Path(__file__).with_name(SCRIPT)
    if not wanted.lock.is_file():
        missing.append(f"Python packages: there is no lock file {wanted.lock}")
    if missing:
        what = f"the bundle would lack {len(missing)} thing(s): {printable('; '.join(missing))}"
        raise HostError(what, hint="get them, then create the bundle again; use a checkout")
    return files, about


def _tree(top: Path, path: str) -> dict[str, Path]:
    names = (file.relative_to(top) for file in sorted(top.rglob("*")))
    files = [name for name in names if (top / name).is_symlink() or not (top / name).is_dir()]
    return {f"{path}/{name}": _plain(top / name, str(name)) for name in files}


def _plain(file: Path, name: str) -> Path:
    if file.is_symlink() or not file.is_file() or not PATH.fullmatch(name):
        raise PolicyError("it can't be in a bundle", where=printable(str(file)))
    return file


# --- gathering


@contextmanager
def _part(home: Path, out: Path) -> Iterator[Path]:
    """Make the growing bundle's directory, for one call at a time."""
    part = out.with_name(f".{out.name}.part")
    try:
        with locked(home, "bundle", wait=False):
            if part.exists():  # of a call that was interrupted
                remove_tree(part)
            part.mkdir(parents=True)
            yield part
    except BlockingIOError as error:
        raise HostError("another command makes or installs a bundle") from error
    except OSError as error:
        what, where = f"the bundle can't be written: {error.strerror}", error.filename or out
        hint = "free some space and run it again"
        raise HostError(what, where=printable(str(where)), hint=hint) from error


def _copy(source: Path, target: Path, report: Report) -> str:
    report(f"{target.name} ({format_size(source.stat().st_size)})")
    with source.open("rb") as file:
        return hashed_copy(file, target)


def _write(part: Path, texts: Mapping[str, str]) -> dict[str, str]:
    for name, text in texts.items():
        (part / name).write_text(text)
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _debian_packages(state: Path, wanted: Contents, folder: Path) -> dict[str, str]:
    codename = host_kind("")["system"]
    sources, groups = (
        debian_sources(host_sources(), codename),
        {"": (*wanted.packages, *wanted.newer)},
    )
    if codename == "bookworm":
        sources.append(replace(sources[0], suites=(_BACKPORTS,)))
        groups = {_BACKPORTS: wanted.newer, "": wanted.packages}
    apt = PrivateApt(state, sources)
    apt.update()
    for suite, packages in groups.items():
        apt.download_closure(packages, folder, suite=suite)
    (folder / "lock").unlink()  # apt's own
    (folder / "partial").rmdir()
    index, digests = "", dict[str, str]()
    for file in sorted(folder.iterdir()):
        digest = digests[file.name] = file_sha256(file)
        control = run_tool([tool("dpkg-deb"), "--field", str(file)], timeout_s=60).decode().rstrip()
        about = f"Filename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}"
        index += f"{control}\n{about}\n\n"
    names = "".join(f"{name}\n" for packages in groups.values() for name in packages)
    digests |= _write(folder, {"Packages": index, "install.txt": names})
    return {f"{folder.name}/{name}": digest for name, digest in digests.items()}


def _wheels(made: Path, wanted: Contents, report: Report) -> dict[str, Path]:
    report("Python packages")
    _pip(["--python", _PYTHON], made, ["--require-hashes", "--requirement", str(wanted.lock)])
    report("Belljar's own wheel")
    can_build = all(map(find_spec, ("hatchling", "ziglang")))
    isolated = ["--no-build-isolation"] if can_build else []
    _pip([], made, [*isolated, str(wanted.checkout)])
    wheels = sorted(made.glob("*.whl"))
    tools = f"{_TOOLS}{debian_arch()}-"
    inspect = next(each for each in wheels if each.name.startswith("inspect_ai-"))
    if not any(name.startswith(tools) for name in zipfile.ZipFile(inspect).namelist()):
        what = f"the bundle would lack Inspect's tools for sandboxes ({tools}…)"
        raise HostError(what, hint="use a version of inspect-ai whose wheel has them")
    return {f"python/{wheel.name}": wheel for wheel in wheels}


def _pip(options: Sequence[str], folder: Path, arguments: Sequence[str]) -> None:
    words = ("--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--wheel-dir")
    argv = [sys.executable, "-m", "pip", *options, *words, str(folder), *arguments]
    run_tool(argv, timeout_s=7200)
