"""Fetching a container image with skopeo into an OCI layout: with as few rights as the source allows, bounded in time and size."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from belljar.errors import HostError, PolicyError
from belljar.image.kernel import debian_arch
from belljar.image.layers.limits import ImportLimits
from belljar.image.scratch import remove_tree
from belljar.image.tools import limited, plain_env, run_tool, tool
from belljar.units import format_size, printable

_FILES: Final = ("oci-archive", "oci", "docker-archive")
_SERVICES: Final = ("docker-daemon", "docker")
_NOBODY: Final = 65534
_SLACK_BYTES: Final = 64 << 20
_TRUST_POLICIES: Final = (Path.home() / ".config/containers/policy.json", Path("/etc/containers/policy.json"))


def transport_of(ref: str) -> str:
    """The transport of a reference. Raises `PolicyError` that lists those that are taken."""
    transport, colon, rest = ref.partition(":")
    if not colon or not rest or transport not in (*_FILES, *_SERVICES):
        known = " ".join(f"{name}:…" for name in (*_FILES, *_SERVICES))
        raise PolicyError(f"{printable(ref)!r} is no image reference", mend=f"write one of {known}")
    return transport


def fetch(ref: str, scratch: Path, limits: ImportLimits) -> Path:
    """Copy the image `ref` into an OCI layout below `scratch`; the layout's directory.

    Files are read as an unprivileged user when this process is root (registries and daemons need the caller's own credentials). Raises `PolicyError`
    when a file can't be read as an image or is too large, `HostError` when skopeo, the registry or the daemon fails.
    """
    transport, _, rest = ref.partition(":")
    work = scratch / "fetch"
    work.mkdir(mode=0o700)
    drop = transport in _FILES and os.geteuid() == 0
    source = f"{transport}:{_staged(rest, work, limits, drop=drop)}" if transport in _FILES else ref
    if drop:
        os.chown(work, _NOBODY, _NOBODY)
    argv = [*(_unprivileged() if drop else []), *_skopeo(source, limits)]
    try:
        run_tool(argv, timeout_s=limits.timeout_s, env=_env(drop=drop), cwd=work, watch=_size_watch(work, limits))
    except HostError as error:
        raise _refused(error, ref, transport, limits) from error
    _take_back(work, ref, drop=drop)
    return work / "layout"


def _skopeo(source: str, limits: ImportLimits) -> list[str]:
    # Names relative to the working directory: an unprivileged skopeo need not (and can't) traverse the store.
    trust = [] if any(path.exists() for path in _TRUST_POLICIES) else ["--insecure-policy"]
    platform = ["--override-os", "linux", "--override-arch", debian_arch()]
    copy = ["copy", "--quiet", "--dest-oci-accept-uncompressed-layers", source, "oci:layout:image"]
    argv = [tool("skopeo"), *trust, *platform, "--tmpdir", ".", *copy]
    return limited(argv, max_file_bytes=limits.max_bytes + _SLACK_BYTES, cpu_s=int(limits.timeout_s))


def _unprivileged() -> list[str]:
    return [tool("setpriv"), f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--no-new-privs", "--"]


def _env(*, drop: bool) -> dict[str, str]:
    if not drop:
        return plain_env()
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "TMPDIR": "."}


def _staged(rest: str, work: Path, limits: ImportLimits, *, drop: bool) -> str:
    """The file part of a reference as skopeo can open it from its working directory; copied if it couldn't read it there."""
    file, colon, tag = rest.partition(":")
    path = Path(file).absolute()
    if not path.exists():
        raise PolicyError(
            "there is no such file", where=printable(file), mend="check the path; a `:` in it can't be used"
        )
    if drop and not _readable_by_nobody(path):
        _copy(path, work / "source", limits)
        path = Path("source")
    return f"{path}{colon}{tag}"


def _readable_by_nobody(path: Path) -> bool:
    """Whether everybody may read the file: by asking as somebody who has no rights."""
    if path.is_dir():
        return False
    try:
        run_tool([*_unprivileged(), tool("test"), "-r", str(path)], timeout_s=10)
    except HostError:
        return False
    return True


def _copy(path: Path, into: Path, limits: ImportLimits) -> None:
    """Copy a file, or a directory's plain files and directories (no link is followed), owned by the unprivileged user."""
    left_bytes = limits.max_bytes
    found = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
    for entry in found[: limits.max_entries]:
        target = into / entry.relative_to(path)
        if entry.is_dir() and not entry.is_symlink():
            target.mkdir()
        elif entry.is_file() and (entry == path or not entry.is_symlink()):
            left_bytes -= entry.stat().st_size
            if left_bytes < 0:
                raise _too_large(str(path), limits)
            shutil.copyfile(entry, target)
        else:
            raise PolicyError("it is neither a file nor a directory", where=printable(str(entry)))
        os.chown(target, _NOBODY, _NOBODY)


def _take_back(work: Path, ref: str, *, drop: bool) -> None:
    """What the unprivileged user wrote is ours again, so that nobody changes it while it is read. Links are not looked behind."""
    remove_tree(work / "source")
    for directory, below, files in os.walk(work):
        if any((Path(directory) / name).is_symlink() for name in (*below, *files)):
            raise PolicyError("it can't be read as an image: it holds links", where=printable(ref))
        for path in [Path(directory), *(Path(directory) / name for name in files)] if drop else []:
            os.chown(path, 0, 0, follow_symlinks=False)


def _size_watch(work: Path, limits: ImportLimits) -> Callable[[], None]:
    """A check that the directory has not grown beyond what a bounded image can need (its blobs and skopeo's own copy)."""

    def check() -> None:
        total = 0
        for directory, _, files in os.walk(work):
            for name in files:
                try:
                    total += (Path(directory) / name).lstat().st_size
                except FileNotFoundError:
                    continue
        if total > 3 * limits.max_bytes + _SLACK_BYTES:
            raise _too_large("", limits)

    return check


def _too_large(where: str, limits: ImportLimits) -> PolicyError:
    what = f"the image is larger than {format_size(limits.max_bytes)}"
    return PolicyError(what, where=printable(where), mend="--max-size allows more")


def _refused(error: HostError, ref: str, transport: str, limits: ImportLimits) -> HostError | PolicyError:
    text = error.what
    if "SIGXFSZ" in text or "file too large" in text:
        return _too_large(ref, limits)
    if "no space left on device" in text.lower():
        mend = "free some space there, or set BELLJAR_HOME to a directory on a larger disk"
        return HostError("no space is left to fetch the image", where=printable(ref), mend=mend)
    if transport in _FILES:
        return PolicyError(f"it can't be read as an image: {text}", where=printable(ref), mend="check how it was made")
    return HostError(
        f"the image can't be fetched: {text}", where=printable(ref), mend="check the name, the network and the login"
    )
