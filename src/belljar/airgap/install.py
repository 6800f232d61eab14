"""Installs a bundle: verified whole before anything is written, then item by item from copies."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from belljar.airgap.manifest import SCRIPT, Bundle, BundleError, Item, Manifest, Report
from belljar.errors import HostError
from belljar.image.kernel import adopt_kernel, debian_arch
from belljar.image.store import Store
from belljar.image.tools import run_logged, tool
from belljar.store.home import make_store_dir, need_space
from belljar.store.locks import locked
from belljar.store.scratch import remove_tree, retire, scratch_dir
from belljar.units import printable

INSTALLED: Final = "bundle.json"
"""In the store: which bundle was installed last, and by whom it was signed."""
DOCUMENTS: Final = "share"
_IMAGE_NAMES: Final = "images/names.json"
_WEIGHTS: Final = "belljar.model.weights"


def verify_bundle(path: Path, *, expected_key: str | None, report: Report) -> Manifest:
    """Check the signature and every file. Raises `BundleError` for the first fault."""
    with Bundle(path) as bundle:
        manifest = bundle.manifest(expected_key)
        bundle.verify(manifest, report)
        return manifest


def known_signer(home: Path) -> str | None:
    """The key of the bundle that was installed last."""
    return _installed(home).get("signer")


def install_bundle(
    home: Path,
    path: Path,
    *,
    expected_key: str,
    packages: bool,
    allow_older: bool,
    report: Report,
) -> Manifest:
    """Install all of a bundle; call it again after an interruption.

    `packages`: also Debian's and Python's, as root; these come last, as they replace this program.
    Raises `BundleError`, `HostError`; before anything is written if the bundle has a fault.
    """
    with Bundle(path) as bundle:
        manifest = bundle.manifest(expected_key)
        check_host(manifest)
        if not allow_older:
            _refuse_older(manifest, _installed(home))
        if packages and os.geteuid() != 0:
            hint = "run it as root, or with --no-packages"
            raise HostError("only root can install Debian packages", hint=hint)
        need_space(home, manifest.size_bytes + (1 << 30), "the bundle")
        report("verifying")
        bundle.verify(manifest, report)
        with locked(home, "bundle"), scratch_dir(home) as scratch:

            def take(items: tuple[Item, ...]) -> None:
                for item in items:
                    report(item.path)
                    bundle.copy(item, scratch / item.path)

            _install_store(home, manifest, scratch, take)
            if packages:
                take((*manifest.of("debian"), *manifest.of("python"), *manifest.of("script")))
                argv = [tool("sh"), str(scratch / SCRIPT), "--packages", sys.prefix]
                log = home / "bundle.log"
                run_logged(argv, log=log, on_line=report, finish_when_interrupted=True)
            about = {name: getattr(manifest, name) for name in ("created", "digest", "signer")}
            (scratch / INSTALLED).write_text(json.dumps(about, sort_keys=True) + "\n")
            (scratch / INSTALLED).replace(home / INSTALLED)
    return manifest


def check_host(manifest: Manifest) -> None:
    """Raise `HostError` if the bundle is for another kind of host."""
    release = platform.freedesktop_os_release()
    here = {
        "arch": debian_arch(),
        "system": release.get("VERSION_CODENAME", ""),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    words = {"arch": "the architecture", "system": "the Debian release", "python": "the Python"}
    for name, has in here.items():
        wants = getattr(manifest, name)
        if wants != has:
            what = f"the bundle is for {words[name]} {wants}, and this host has {has}"
            raise HostError(what, hint="create it on a host like this one")


def _refuse_older(manifest: Manifest, installed: dict[str, str]) -> None:
    if manifest.created < installed.get("created", ""):
        what = f"a newer bundle is installed: {installed['created']}, this one {manifest.created}"
        raise BundleError(what, hint="--allow-older installs it all the same")


def _installed(home: Path) -> dict[str, str]:
    try:
        found = json.loads((home / INSTALLED).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise HostError("it can't be read", where=str(home / INSTALLED)) from error
    return {str(name): str(value) for name, value in found.items()}


def _install_store(
    home: Path, manifest: Manifest, scratch: Path, take: Callable[[tuple[Item, ...]], None]
) -> None:
    """Kernel, images, weights, documentation: each by a rename; what is there already is kept."""
    make_store_dir(home)
    for digest in _folders(manifest.of("kernel")):
        items = tuple(each for each in manifest.of("kernel") if each.path.split("/")[1] == digest)
        take(items)
        adopt_kernel(home, scratch / "kernels" / digest)
    images, store = manifest.of("image"), Store(home)
    named: dict[str, dict[str, str]] = {"names": {}, "origins": {}}
    if index := tuple(each for each in images if each.path == _IMAGE_NAMES):
        take(index)
        named = json.loads((scratch / _IMAGE_NAMES).read_bytes())
    for digest in _folders(images):
        names = [name for name, of in named["names"].items() if of == digest]
        origins = [origin for origin, of in named["origins"].items() if of == digest]
        take(tuple(each for each in images if each.path.startswith(f"images/{digest}/")))
        store.adopt(scratch / "images" / digest, names=names, origins=origins)
        remove_tree(scratch / "images" / digest)
    for name in _folders(manifest.of("weights")):
        if find_spec("belljar.model") is None:
            raise HostError(
                f"this version of Belljar can't keep weights: {printable(name)}",
                hint="install the bundle's packages first",
            )
        parts = ("weights", name)
        take(tuple(e for e in manifest.of("weights") if tuple(e.path.split("/")[:2]) == parts))
        import_module(_WEIGHTS).add_weights(scratch / "weights" / name, home=home)
        remove_tree(scratch / "weights" / name)
    take((*manifest.of("docs"), *manifest.of("examples")))
    fresh = scratch / DOCUMENTS
    fresh.mkdir(mode=0o755)
    for kind in ("docs", "examples"):
        if (scratch / kind).is_dir():
            shutil.move(scratch / kind, fresh / kind)
    if (home / DOCUMENTS).exists():
        remove_tree(retire(home / DOCUMENTS))
    fresh.replace(home / DOCUMENTS)


def _folders(items: tuple[Item, ...]) -> list[str]:
    """The second part of each path that has one and is no plain index, once."""
    found = (item.path.split("/")[1] for item in items if item.path.count("/"))
    return [name for name in dict.fromkeys(found) if name != "names.json"]
