"""The guest kernel: kernels/<digest>/{vmlinuz,kernel.json,modules/NN-name.ko}, kernel-current."""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.dataclass import dataclass
from belljar.errors import HostError
from belljar.image.config import debian_arch
from belljar.image.store import file_sha256
from belljar.store.home import make_store_dir, need_space
from belljar.store.locks import locked
from belljar.store.scratch import scratch_dir

if TYPE_CHECKING:
    from belljar.image.build import AptSource

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# What a compressed one may unpack to; the largest of a cloud kernel is a few MiB.
_MAX_MODULE_BYTES: Final = 64 << 20
# A squashfs root under an overlay in tmpfs, both id-mapped, needs Linux 6.3.
_MIN_VERSION: Final = (6, 3)
# `.modinfo` holds zero-ended text, which is found without reading the ELF file.
_DEPENDS: Final = re.compile(rb"(?:\A|\0)depends=([^\0]{0,4096})\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """`modules` are in load order."""

    digest: str
    version: str
    package: str
    vmlinuz: Path
    modules: tuple[Path, ...]
    wanted: tuple[str, ...] = ()


def current_kernel(home: Path) -> Kernel:
    """Raise `HostError` without a whole one."""
    pointer = home / "kernel-current"
    if not pointer.exists():
        what, hint = "there is no guest kernel", "run `belljar setup`"
        raise HostError(what, where=str(pointer), hint=hint)
    try:
        digest = pointer.read_text().strip()
        directory = home / "kernels" / digest
        document = json.loads((directory / "kernel.json").read_bytes())
        kernel = Kernel(
            digest=digest,
            version=str(document["release"]),
            package=str(document["package"]),
            vmlinuz=directory / "vmlinuz",
            modules=tuple(directory / "modules" / str(name) for name in document["modules"]),
            wanted=tuple(str(name) for name in document.get("wanted", ())),
        )
        files = (*kernel.modules, kernel.vmlinuz)
        if not _DIGEST.fullmatch(digest) or not all(path.is_file() for path in files):
            raise ValueError("files are missing")
        return kernel
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(pointer) from error


def fetch_kernel(home: Path, sources: Sequence[AptSource]) -> Kernel:
    from belljar.image.build import PrivateApt
    from belljar.image.tools import run_tool, tool

    need_space(home, 512 << 20, "the guest kernel")
    with scratch_dir(home) as scratch:
        apt = PrivateApt(scratch / "apt", sources)
        apt.update()
        meta_package = f"linux-image-cloud-{debian_arch()}"
        depends = apt.show(meta_package).get("Depends", "")
        match = re.match(r"(linux-image-[a-z0-9.+~-]+) \(= ([^)\s]+)\)", depends)
        if match is None:
            what = f"{meta_package} names no kernel package: {depends[:200]}"
            raise HostError(what, where="apt-cache show")
        package = apt.show(f"{match[1]}={match[2]}")
        deb = apt.download(f"{package['Package']}={package['Version']}", scratch)
        if file_sha256(deb) != package.get("SHA256"):
            raise HostError("it is not the kernel package of apt's signed index", where=deb.name)
        run_tool([tool("dpkg-deb"), "--extract", str(deb), str(scratch / "tree")], timeout_s=300)
        return _store(home, scratch, package)


def _store(home: Path, scratch: Path, package: Mapping[str, str]) -> Kernel:
    tree, whole = scratch / "tree", scratch / "kernel"
    whole.mkdir(mode=0o711)
    (image,) = (tree / "boot").glob("vmlinuz-*")
    release = image.name.removeprefix("vmlinuz-")
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None or (int(match[1]), int(match[2])) < _MIN_VERSION:
        needed = ".".join(map(str, _MIN_VERSION))
        what = f"a guest needs Linux {needed} or newer: this is {release}"
        raise HostError(what, hint="use Debian 12 with backports, or Debian 13")
    whole.joinpath("vmlinuz").write_bytes(image.read_bytes())
    whole.joinpath("modules").mkdir()
    for number, (name, content) in enumerate(_modules(tree, release)):
        whole.joinpath("modules", f"{number:02d}-{name}.ko").write_bytes(content)
    files = _files_of(whole)
    digest = _digest_of(files)
    document = {
        "release": release,
        "package": f"{package['Package']}={package['Version']}",
        "package_sha256": package["SHA256"],
        "wanted": REQUIRED_MODULES,
        "modules": [path.name for path in files[1:]],
    }
    whole.joinpath("kernel.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return _make_current(home, scratch, whole, digest)


def adopt_kernel(home: Path, directory: Path) -> Kernel:
    if _digest_of(_files_of(directory)) != directory.name:
        raise _damaged(directory)
    with scratch_dir(home) as scratch:
        return _make_current(home, scratch, directory, directory.name)


def _files_of(directory: Path) -> list[Path]:
    modules = directory / "modules"
    found = [directory / "vmlinuz", *(sorted(modules.iterdir()) if modules.is_dir() else ())]
    return [path for path in found if path.is_file()]


def _digest_of(files: Sequence[Path]) -> str:
    listing = [[path.name, file_sha256(path)] for path in files]
    return hashlib.sha256(json.dumps(listing, separators=(",", ":")).encode()).hexdigest()


def _make_current(home: Path, scratch: Path, whole: Path, digest: str) -> Kernel:
    for path in whole.rglob("*"):
        path.chmod(0o711 if path.is_dir() else 0o444)
    whole.chmod(0o711)
    with locked(home, "kernels"):
        make_store_dir(home / "kernels")
        known = home / "kernels" / digest
        if known.exists() and _digest_of(_files_of(known)) != digest:
            known.replace(scratch / "damaged")  # `setup` repairs it
        if known.exists():
            whole.joinpath("kernel.json").replace(known / "kernel.json")
        else:
            whole.replace(known)
        scratch.joinpath("current").write_text(digest + "\n")
        scratch.joinpath("current").chmod(0o644)
        scratch.joinpath("current").replace(home / "kernel-current")
    return current_kernel(home)


def _modules(tree: Path, release: str) -> list[tuple[str, bytes]]:
    (library,) = tree.glob(f"**/lib/modules/{release}")
    files = {module_name(path.name): path for path in library.rglob("*.ko*") if path.is_file()}
    builtin_paths = (library / "modules.builtin").read_text().split()
    builtin = {module_name(Path(path).name) for path in builtin_paths}

    def read(name: str) -> bytes | None:
        if (path := files.get(name)) is None:
            return None
        if path.suffix == ".ko":
            return path.read_bytes()
        if path.suffix == ".xz":
            return lzma.LZMADecompressor().decompress(path.read_bytes(), _MAX_MODULE_BYTES)
        raise HostError("a module is compressed in a way that isn't known", where=path.name)

    return load_order(REQUIRED_MODULES, read=read, builtin=builtin)


def _damaged(path: Path) -> HostError:
    what = "the kernel store is damaged: this can't be read"
    return HostError(what, where=str(path), hint="run `belljar setup`")


def load_order(
    wanted: Sequence[str], *, read: Callable[[str], bytes | None], builtin: Collection[str]
) -> list[tuple[str, bytes]]:
    """Raise `HostError` for a lacking module."""
    ordered: dict[str, bytes] = {}

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in ordered or name in builtin or name in above:
            return
        content = read(name)
        if content is None:
            raise HostError(f"the kernel has no module {name}, and it is not built in")
        match = _DEPENDS.search(content)
        needed = match[1].decode("ascii", "replace").split(",") if match else []
        for each in filter(None, needed):
            add(module_name(each), (*above, name))
        ordered[name] = content

    for name in wanted:
        add(module_name(name), ())
    return list(ordered.items())


def module_name(text: str) -> str:
    """Return the kernel's name: `virtio-rng.ko.xz` is `virtio_rng`."""
    return text.partition(".ko")[0].replace("-", "_")


# The modules that each guest needs, after those they depend on. From `modules.dep` of Debian's
# 6.12 cloud kernels. On amd64 `virtio_ring`, `virtio`, `virtio_console` and `rng-core` are built
# in.
REQUIRED_MODULES: Final = (
    *("virtio_ring", "virtio", "virtio_mmio", "virtio_blk", "virtio_console"),
    *("rng-core", "virtio-rng", "squashfs", "overlay", "virtio_net"),
)
# Loaded by guests with a network device only.
NIC_MODULES: Final = frozenset({"failover", "net_failover", "dimlib", "virtio_net"})

_DIRECTORIES: Final = ("dev", "m", "proc", "r", "sys")
_S_IFDIR, _S_IFREG, _S_IFCHR = 0o040000, 0o100000, 0o020000  # inode(7); cpio's are the same


def build_initramfs(
    agent: bytes, modules: Sequence[tuple[str, bytes]], *, probe: bytes | None = None
) -> bytes:
    """Raise `ValueError` for what is no ELF file."""
    probes = [] if probe is None else [("p", probe)]
    for name, contents in (("init", agent), *probes, *modules):
        if not contents.startswith(b"\x7fELF"):
            raise ValueError(f"{name} is not an ELF file")
    import gzip

    entries = [(directory, _S_IFDIR | 0o755, b"") for directory in _DIRECTORIES]
    # The kernel opens it as the standard streams of `/init`.
    entries.append(("dev/console", _S_IFCHR | 0o600, b""))
    entries.append(("init", _S_IFREG | 0o755, agent))
    # An unreadable program can't be traced: the container has no uid of the guest's root.
    entries += [(name, _S_IFREG | 0o711, contents) for name, contents in probes]
    for number, (name, contents) in enumerate(modules):
        entries.append((f"m/{number:02d}-{name}.ko", _S_IFREG | 0o644, contents))
    archive = [_entry(inode, *each) for inode, each in enumerate(entries, 1)]
    archive.append(_entry(0, "TRAILER!!!", 0, b""))
    return gzip.compress(b"".join(archive), compresslevel=6, mtime=0)


def _entry(inode: int, path: str, mode: int, contents: bytes) -> bytes:
    name = path.encode("ascii") + b"\0"
    kind = mode & 0o170000
    links, device = (2 if kind == _S_IFDIR else 1), ((5, 1) if kind == _S_IFCHR else (0, 0))
    fields = (inode, mode, 0, 0, links, 0, len(contents), 0, 0, *device, len(name), 0)
    # The "new" format of cpio, the only one besides its checksummed form that the kernel reads.
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return b"".join(part + b"\0" * (-len(part) % 4) for part in (header + name, contents))
