"""Fetching images with skopeo: few rights, bounded time and size."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from belljar.errors import HostError, PolicyError
from belljar.image.daemon import save_image
from belljar.image.kernel import debian_arch
from belljar.image.layers import ImportLimits, LayerError
from belljar.image.layers.blob import open_layer
from belljar.image.layers.headers import EntryKind, read_entries
from belljar.image.origin import Origin, origin_of_archive, origin_of_layout, origin_of_service
from belljar.image.tools import ToolError, give_tree, limited, plain_env, run_tool, tool
from belljar.store.home import HINT_SPACE
from belljar.store.scratch import owned_dir, remove_tree
from belljar.units import format_duration, format_size, printable

_FILES: Final = ("oci-archive", "oci", "docker-archive")
_SERVICES: Final = ("docker-daemon", "docker")
# Times `stall_s` without a byte: a daemon packs a large image before it sends the first.
_DAEMON_STALLS: Final = 5
_LAYOUT_NAME: Final = re.compile(r"oci-layout|index\.json|blobs/sha256/[0-9a-f]{64}")
_FATAL: Final = re.compile(r'level=fatal msg="((?:[^"\\]|\\.)*)"')
_NOBODY: Final = 65534
_SLACK_BYTES: Final = 64 << 20
_TRUST_POLICIES: Final = (
    Path.home() / ".config/containers/policy.json",
    Path("/etc/containers/policy.json"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """skopeo's copy: `manifest.json`, and blobs named by digest."""

    directory: Path
    origin: Origin


def transport_of(ref: str) -> str:
    """Raises `PolicyError` that lists the transports."""
    transport, colon, rest = ref.partition(":")
    if not colon or not rest or transport not in (*_FILES, *_SERVICES):
        known = " ".join(f"{name}:…" for name in (*_FILES, *_SERVICES))
        shown = printable(ref, max_chars=200)
        hint = f"write docker://{shown} for a registry's image, or one of {known}"
        raise PolicyError(f"{shown!r} does not say where the image is", hint=hint)
    return transport


@contextmanager
def fetched(
    ref: str,
    scratch: Path,
    limits: ImportLimits,
    report: Callable[[str], None] = lambda _line: None,
) -> Iterator[Fetched]:
    """The image `ref` copied into a temporary directory.

    As root, files and daemons' archives are read as an unprivileged user. Raises `PolicyError` for
    no image or a too large one, `HostError` when skopeo, the registry or the daemon fails.
    """
    transport, _, rest = ref.partition(":")
    drop = transport != "docker" and os.geteuid() == 0
    with _work_dir(scratch, drop=drop) as work:
        try:
            origin = (
                _from_file(transport, rest, scratch, work, limits, drop=drop)
                if transport in _FILES
                else origin_of_service(transport, rest, work, limits)
            )
            if origin.daemon is not None:
                archive = work / "source"
                save_image(
                    origin.daemon,
                    archive,
                    max_bytes=limits.max_bytes + _SLACK_BYTES,
                    stall_s=_DAEMON_STALLS * limits.stall_s,
                    timeout_s=limits.timeout_s,
                    report=report,
                )
                if drop:
                    os.chown(archive, _NOBODY, _NOBODY)
                origin = origin.at(archive)
            argv = [*(_unprivileged() if drop else []), *_skopeo(origin, work, limits)]
            watch = _watch(
                work, limits, report, stall_s=limits.stall_s if transport == "docker" else math.inf
            )
            env = plain_env(TMPDIR=str(work))
            if drop:
                path = "/usr/sbin:/usr/bin:/sbin:/bin"
                env = {"PATH": path, "HOME": "/nonexistent"} | {
                    name: env[name] for name in ("LC_ALL", "TMPDIR")
                }
            run_tool(argv, timeout_s=limits.timeout_s, env=env, cwd=work, watch=watch)
        except LayerError as error:
            raise error.refusal(ref) from error
        except HostError as error:
            raise _refused(error, ref, transport, limits) from error
        remove_tree(work / "source")
        for directory, below, files in os.walk(work):
            if any(Path(directory, name).is_symlink() for name in (*below, *files)):
                what = "it can't be read as an image: it holds links"
                raise PolicyError(what, where=printable(ref))
        if drop:
            give_tree(work, 0)  # ours from now on, so that nothing changes it while it is read
        yield Fetched(directory=work / "image", origin=origin)


@contextmanager
def _work_dir(scratch: Path, *, drop: bool) -> Iterator[Path]:
    """In `scratch`, or the system's if `nobody` can't enter."""
    work = scratch / "fetch"
    work.mkdir(mode=0o700)
    if not drop:
        yield work
        return
    scratch.chmod(0o711)
    os.chown(work, _NOBODY, _NOBODY)
    if _nobody_may("-w", work):
        yield work
        return
    with owned_dir(Path(tempfile.gettempdir()), prefix="belljar-fetch-") as outside:
        outside.chmod(0o711)
        elsewhere = outside / "fetch"
        elsewhere.mkdir(mode=0o700)
        os.chown(elsewhere, _NOBODY, _NOBODY)
        yield elsewhere


def _skopeo(origin: Origin, work: Path, limits: ImportLimits) -> list[str]:
    trust = [] if any(path.exists() for path in _TRUST_POLICIES) else ["--insecure-policy"]
    platform = ["--override-os", "linux", "--override-arch", debian_arch()]
    # A directory keeps any manifest as it is, so the digests stay the same.
    copy = ["copy", "--quiet", *origin.options, origin.source, "dir:image"]
    argv = [tool("skopeo"), *trust, *platform, "--tmpdir", str(work), *copy]
    max_bytes = limits.max_bytes + _SLACK_BYTES
    return limited(argv, max_file_bytes=max_bytes, cpu_s=int(limits.timeout_s))


def _unprivileged() -> list[str]:
    ids = (f"--reuid={_NOBODY}", f"--regid={_NOBODY}")
    return [tool("setpriv"), *ids, "--clear-groups", "--no-new-privs", "--"]


def _from_file(
    transport: str, rest: str, scratch: Path, work: Path, limits: ImportLimits, *, drop: bool
) -> Origin:
    """The file of a reference as skopeo can open it; copied if it couldn't read it.

    The blobs of an `oci-archive` are taken out here: skopeo would set the owners that it states,
    which only root can.
    """
    file, _, tag = rest.partition(":")
    path = Path(file).absolute()
    if not path.exists():
        hint = "check the path; a `:` in it can't be used"
        raise PolicyError("there is no such file", where=printable(file), hint=hint)
    staged = work / "source"
    if transport == "docker-archive":
        origin = origin_of_archive(path, tag, scratch, limits)
    elif transport == "oci-archive":
        _unpack_layout(path, staged, scratch, limits)
        path = staged
    if drop and path != staged and (path.is_dir() or not _nobody_may("-r", path)):
        _copy(path, staged, limits)
        path = staged
    if transport != "docker-archive":
        origin = origin_of_layout(path, tag, limits)
    if drop and path == staged:
        give_tree(staged, _NOBODY)
    return origin.at(path)


def _unpack_layout(archive: Path, into: Path, scratch: Path, limits: ImportLimits) -> None:
    if not archive.is_file():
        hint = "for a directory, write oci:DIRECTORY"
        raise PolicyError("it is no file", where=printable(str(archive)), hint=hint)
    (into / "blobs/sha256").mkdir(parents=True)
    with closing(open_layer(archive, None, max_bytes=limits.max_bytes, scratch=scratch)) as opened:
        for entry in read_entries(opened, opened.size_bytes, limits.max_entries):
            name = b"/".join(entry.path).decode("ascii", "replace")
            if entry.kind is EntryKind.FILE and _LAYOUT_NAME.fullmatch(name):
                with (into / name).open("wb") as file:
                    file.writelines(opened.chunks(entry.offset, entry.size_bytes))


def _nobody_may(test: str, path: Path) -> bool:
    try:
        run_tool([*_unprivileged(), tool("test"), test, str(path)], timeout_s=10)
    except HostError:
        return False
    return True


def _copy(path: Path, into: Path, limits: ImportLimits) -> None:
    """Copy a file or directory; links are refused."""
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


def _watch(
    work: Path, limits: ImportLimits, report: Callable[[str], None], *, stall_s: float
) -> Callable[[], None]:
    """A check for growth and for the size bounds."""
    seen, changed_s = -1, monotonic()

    def check() -> None:
        nonlocal seen, changed_s
        total = 0
        for directory, _, files in os.walk(work):
            for name in files:
                with suppress(FileNotFoundError):
                    total += Path(directory, name).lstat().st_size
        if total > 3 * limits.max_bytes + _SLACK_BYTES:
            raise _too_large("", limits)
        if total != seen:
            seen, changed_s = total, monotonic()
            report(f"fetching: {format_size(total)}")
        elif monotonic() - changed_s > stall_s:
            raise HostError(f"nothing came for {format_duration(stall_s)}, so it was given up")

    return check


def _too_large(where: str, limits: ImportLimits) -> PolicyError:
    what = f"the image is larger than {format_size(limits.max_bytes)}"
    return PolicyError(what, where=printable(where), hint="--max-size allows more")


def _refused(
    error: HostError, ref: str, transport: str, limits: ImportLimits
) -> HostError | PolicyError:
    # The last error of skopeo, without the log format around it. Its status is 1 for every
    # failure, so the message is read: for the hint, and for the kind of error alone.
    output = error.output if isinstance(error, ToolError) else ""
    fatal = _FATAL.findall(output.replace('\\\\"', "'").replace('\\"', "'"))
    text = fatal[-1] if fatal else error.what
    was_cut = isinstance(error, ToolError) and error.killed_by == signal.SIGXFSZ
    if was_cut or "file too large" in output:
        return _too_large(ref, limits)
    if "no space left on device" in output.lower():
        what = "no space is left to fetch the image"
        return HostError(what, where=printable(ref), hint=HINT_SPACE)
    if transport in _FILES:
        what = f"it can't be read as an image: {text}"
        return PolicyError(what, where=printable(ref), hint="check how it was made")
    hint = error.hint or "check the name, the network and the login"
    return HostError(f"the image can't be fetched: {text}", where=printable(ref), hint=hint)
