"""The guest kernel: Debian's cloud kernel package, fetched, checked and unpacked, never installed.

    kernels/<digest>/{vmlinuz,config,kernel.json,modules/NN-name.ko}    kernel-current

`digest` covers what a guest would load (the kernel and its modules, in load order), so that another choice of modules is another kernel.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belljar.dataclass import dataclass
from belljar.errors import HostError
from belljar.image.modules import load_order, module_name
from belljar.image.store import file_sha256
from belljar.image.tools import run_tool, tool
from belljar.store.home import make_store_dir, need_space
from belljar.store.locks import locked
from belljar.store.scratch import MAKING, owned_name, remove_tree, scratch_dir

if TYPE_CHECKING:
    from belljar.image.apt import AptSource, PrivateApt

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_MAX_MODULE_BYTES: Final = 64 << 20
# The root file system is squashfs under an overlay in tmpfs, both id-mapped: Linux 6.3 or newer, built so that it can read the image.
_NEEDED_CONFIG: Final = (
    "CONFIG_SQUASHFS",
    "CONFIG_SQUASHFS_LZ4",
    "CONFIG_OVERLAY_FS",
    "CONFIG_TMPFS",
    "CONFIG_USER_NS",
    "CONFIG_VIRTIO_BLK",
    "CONFIG_VIRTIO_CONSOLE",
    "CONFIG_VIRTIO_MMIO",
)
_LEAST_VERSION: Final = (6, 3)
_DEBIAN_ARCH: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A guest kernel in the store. `modules` are uncompressed and in load order; all files are read-only.

    `wanted` are the modules that were asked for when it was fetched.
    """

    digest: str
    version: str
    package: str
    package_sha256: str
    vmlinuz: Path
    modules: tuple[Path, ...]
    config: Path
    wanted: tuple[str, ...] = ()


def debian_arch() -> str:
    """Debian's name of this machine's architecture. Raises `HostError` when Belljar has no guest for it."""
    machine = platform.machine()
    if machine not in _DEBIAN_ARCH:
        raise HostError(
            f"there is no guest kernel for {machine}", hint=f"use a machine with {' or '.join(_DEBIAN_ARCH)}"
        )
    return _DEBIAN_ARCH[machine]


def current_kernel(home: Path) -> Kernel:
    """The kernel that new templates boot. Raises `HostError` when there is none or the store is damaged."""
    pointer = home / "kernel-current"
    try:
        digest = pointer.read_text().strip()
    except FileNotFoundError:
        raise HostError("there is no guest kernel", where=str(pointer), hint="run `belljar setup`") from None
    except OSError as error:
        raise _damaged(pointer) from error
    return _read(home / "kernels" / digest)


def fetch_kernel(home: Path, sources: Sequence[AptSource], modules: Sequence[str]) -> Kernel:
    """Fetch the newest cloud kernel that `sources` have and make it the current one.

    `modules` are what the guest must load; what they depend on is added, what the kernel has built in is left out. The package is
    checked against apt's signed index twice: by apt, and by its SHA-256 here. Raises `HostError`; then the store is as it was.
    """
    from belljar.image.apt import PrivateApt

    need_space(home, 512 << 20, "the guest kernel")
    with scratch_dir(home) as scratch:
        apt = PrivateApt(scratch / "apt", sources)
        apt.update()
        package = _resolve(apt, f"linux-image-cloud-{debian_arch()}")
        deb = apt.download(f"{package['Package']}={package['Version']}", scratch)
        if file_sha256(deb) != package.get("SHA256"):
            raise HostError(
                "the kernel package is not the one in apt's signed index",
                where=deb.name,
                hint="run `belljar setup` again",
            )
        run_tool([tool("dpkg-deb"), "--extract", str(deb), str(scratch / "tree")], timeout_s=300)
        return _store(home, scratch, package, modules)


def remove_kernel(home: Path, digest: str) -> None:
    """Remove a kernel, in turn with those who fetch one; not the current one, nor any when it can't be told which that is.

    Raises `FileNotFoundError` when it isn't there.
    """
    with locked(home, "kernels"):
        if current_digest(home) in {None, digest}:
            return
        directory = home / "kernels" / digest
        retired = directory.with_name(owned_name(MAKING, f"retired-{digest[:12]}"))
        directory.rename(retired)
        remove_tree(retired)


def current_digest(home: Path) -> str | None:
    """Which kernel is the current one; None when nothing says it."""
    try:
        said = (home / "kernel-current").read_text().strip()
    except (OSError, ValueError):
        return None
    return said if _DIGEST.fullmatch(said) else None


def _resolve(apt: PrivateApt, meta_package: str) -> dict[str, str]:
    """What the meta package depends on: the package with the kernel in it."""
    depends = apt.show(meta_package).get("Depends", "")
    match = re.match(r"(linux-image-[a-z0-9.+~-]+) \(= ([^)\s]+)\)", depends)
    if match is None:
        raise HostError(f"{meta_package} names no kernel package: {depends[:200]}", where="apt-cache show")
    return apt.show(f"{match[1]}={match[2]}")


def _store(home: Path, scratch: Path, package: Mapping[str, str], modules: Sequence[str]) -> Kernel:
    whole = scratch / "kernel"
    whole.mkdir(mode=0o711)
    release = _lay_out(scratch / "tree", whole, modules)
    digest = _digest(whole)
    document = {
        "version": 1,
        "digest": digest,
        "release": release,
        "package": f"{package['Package']}={package['Version']}",
        "package_sha256": package["SHA256"],
        "wanted": list(modules),
        "modules": [path.name for path in sorted(whole.joinpath("modules").iterdir())],
    }
    whole.joinpath("kernel.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    for path in whole.rglob("*"):
        path.chmod(0o711 if path.is_dir() else 0o444)
    with locked(home, "kernels"):
        make_store_dir(home / "kernels")
        if (home / "kernels" / digest).exists():
            whole.joinpath("kernel.json").replace(home / "kernels" / digest / "kernel.json")
        else:
            whole.replace(home / "kernels" / digest)
        scratch.joinpath("current").write_text(digest + "\n")
        scratch.joinpath("current").chmod(0o644)
        scratch.joinpath("current").replace(home / "kernel-current")
    return current_kernel(home)


def _lay_out(tree: Path, whole: Path, modules: Sequence[str]) -> str:
    """Copy the kernel, its configuration and the modules out of the unpacked package; the kernel's release."""
    images = sorted((tree / "boot").glob("vmlinuz-*"))
    if len(images) != 1:
        raise HostError(f"the kernel package holds {len(images)} kernels, one was expected", where="vmlinuz-*")
    release = images[0].name.removeprefix("vmlinuz-")
    config = tree / "boot" / f"config-{release}"
    _check(release, config.read_text())
    whole.joinpath("vmlinuz").write_bytes(images[0].read_bytes())
    whole.joinpath("config").write_bytes(config.read_bytes())
    whole.joinpath("modules").mkdir()
    for number, (name, content) in enumerate(_modules(tree, release, modules)):
        whole.joinpath("modules", f"{number:02d}-{name}.ko").write_bytes(content)
    return release


def _modules(tree: Path, release: str, wanted: Sequence[str]) -> list[tuple[str, bytes]]:
    library = next(
        (path for path in (tree / "usr/lib/modules" / release, tree / "lib/modules" / release) if path.is_dir()), None
    )
    if library is None:
        raise HostError("the kernel package holds no modules", where=f"lib/modules/{release}")
    files = {module_name(path.name): path for path in library.rglob("*.ko*") if path.is_file()}
    builtin = {module_name(Path(line).name) for line in (library / "modules.builtin").read_text().split()}
    return load_order(wanted, read=lambda name: _module(files[name]) if name in files else None, builtin=builtin)


def _module(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.LZMADecompressor().decompress(raw, _MAX_MODULE_BYTES)
    if path.suffix != ".ko":
        raise HostError(f"a module is compressed in a way that isn't known: {path.name}", where=str(path.name))
    return raw


def _check(release: str, config: str) -> None:
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None or (int(match[1]), int(match[2])) < _LEAST_VERSION:
        raise HostError(
            f"the kernel {release} is too old: a guest needs {'.'.join(map(str, _LEAST_VERSION))} or newer",
            hint="use Debian 12 with backports, or Debian 13",
        )
    enabled = {line.partition("=")[0] for line in config.splitlines() if line.endswith(("=y", "=m"))}
    missing = [name for name in _NEEDED_CONFIG if name not in enabled]
    if missing:
        raise HostError(f"the kernel {release} was built without {', '.join(missing)}", where="config")


def _digest(whole: Path) -> str:
    files = [whole / "vmlinuz", *sorted((whole / "modules").iterdir())]
    listing = [[path.name, file_sha256(path)] for path in files]
    return hashlib.sha256(json.dumps(listing, separators=(",", ":")).encode()).hexdigest()


def _read(directory: Path) -> Kernel:
    path = directory / "kernel.json"
    try:
        return _kernel(json.loads(path.read_bytes()), directory)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error


def _kernel(document: Mapping[str, Any], directory: Path) -> Kernel:
    modules = tuple(directory / "modules" / str(name) for name in document["modules"])
    if not _DIGEST.fullmatch(directory.name) or not all(path.is_file() for path in (*modules, directory / "vmlinuz")):
        raise ValueError("files are missing")
    return Kernel(
        digest=directory.name,
        version=str(document["release"]),
        package=str(document["package"]),
        package_sha256=str(document["package_sha256"]),
        vmlinuz=directory / "vmlinuz",
        modules=modules,
        config=directory / "config",
        wanted=tuple(str(name) for name in document.get("wanted", ())),
    )


def _damaged(path: Path) -> HostError:
    return HostError(
        "the kernel store is damaged: this can't be read", where=str(path), hint="run `belljar setup --refresh`"
    )
