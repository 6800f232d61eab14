"""Finding an image where its reference says: a registry (by skopeo), a daemon, a file.

skopeo runs with bounded time and size. Files and daemons' archives are read by `origin` alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Final

from belljar.dataclass import replace
from belljar.errors import HostError, PolicyError
from belljar.image.config import debian_arch
from belljar.image.layers import ImportLimits
from belljar.image.origin import (
    ImageParts,
    files_in,
    files_of_archive,
    image_in_archive,
    image_in_layout,
    image_of_manifest,
    instance_of,
    is_index,
    parse_document,
    reference_of,
)
from belljar.image.tools import ToolError, plain_env, run_tool, tool
from belljar.store.home import HINT_SPACE
from belljar.units import format_duration, format_size, printable

# skopeo's words (containers-transports(5)).
_FILES: Final = ("oci-archive", "oci", "docker-archive")
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
) -> Iterator[ImageParts]:
    """The image `ref`, with the help of an own directory in `scratch`.

    Raises `PolicyError` for no image or a too large one, `LayerError` for a broken one, `HostError`
    when skopeo, the registry or the daemon fails.
    """
    transport, _, rest = ref.partition(":")
    work = scratch / "fetch"
    work.mkdir(mode=0o700)
    if transport in _FILES:
        path = Path(rest).absolute()
        if not (path.is_dir() if transport == "oci" else path.is_file()):
            kind = "directory" if transport == "oci" else "file"
            raise PolicyError(f"there is no such {kind}", where=printable(rest))
        if transport == "oci":
            yield image_in_layout(files_in(path), limits)
            return
        find = image_in_layout if transport == "oci-archive" else image_in_archive
        with files_of_archive(path, work, limits) as files:
            yield find(files, limits)
        return
    if transport == "docker":
        try:
            found = _copied(rest, work, limits, report)
        except HostError as error:
            # Its status is 1 for every failure, so skopeo's last message (logrus) is read.
            output = error.output if isinstance(error, ToolError) else ""
            what = output.rpartition("level=fatal msg=")[2] or error.what
            hint = error.hint or "check the name, the network and the login"
            if "no space left on device" in output.lower():
                hint = HINT_SPACE
            what = f"the image can't be fetched: {what}"
            raise HostError(what, where=printable(ref), hint=hint) from error
        yield found
        return
    name = _saved(rest, work, limits, report)
    with files_of_archive(work / "source", work, limits) as files:
        found = image_in_archive(files, limits)
        yield replace(found, names=(name,))


def _installed() -> list[str]:
    """Docker's and Podman's own programs, which know where their daemon is."""
    # $DOCKER_HOST names a daemon that Podman doesn't ask.
    programs = ("docker",) if os.environ.get("DOCKER_HOST") else ("docker", "podman")
    return [path for path in map(shutil.which, programs) if path]


def _saved(rest: str, work: Path, limits: ImportLimits, report: Callable[[str], None]) -> str:
    """Have the first program that has the image write it to `source`; its name."""
    reference, failures = reference_of(rest), list[str]()
    name = reference.familiar
    if reference.digest:
        hint = f"`belljar image import docker://{name}` fetches it from its registry"
        what = "a daemon gives an image by its name, not by a digest"
        raise PolicyError(what, where=printable(f"docker-daemon:{name}"), hint=hint)
    patient = replace(limits, stall_s=_DAEMON_STALLS * limits.stall_s)
    # A program keeps what its daemon says, so its memory is bounded, too.
    bounded = [tool("prlimit"), f"--data={_MAX_DATA_BYTES}", "--core=0", "--"]
    env = plain_env(TMPDIR=str(work))
    for program in _installed():
        # By the whole name, for Podman takes a short one for an image that was built here.
        for asked in (reference.canonical, f"localhost/{name}"):
            argv = [*bounded, program, "save", "--output", "source", asked]
            watch = _watch(work, printable(rest), patient, report)
            try:
                run_tool(argv, timeout_s=limits.timeout_s, env=env, cwd=work, watch=watch)
                return name
            except HostError as error:
                failures.append(f"{Path(program).name}: {error.what}")
                (work / "source").unlink(missing_ok=True)
                if not isinstance(error, ToolError):  # it hung, and would for the other name
                    break
    what = "; ".join(failures) or "neither `docker` nor `podman` is installed"
    raise HostError(
        f"no daemon gave the image {printable(name)!r}: {printable(what, max_chars=600)}",
        where=f"docker-daemon:{printable(name)}",
        hint=f"check DOCKER_HOST and the name, or fetch it: `belljar image import "
        f"docker://{printable(name)}`",
    )


def _copied(
    rest: str, work: Path, limits: ImportLimits, report: Callable[[str], None]
) -> ImageParts:
    """Ask a registry for a name's digest, and copy that image as it is: its digests stay the same.

    As in Docker, registries of loopback may speak HTTP.
    """
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
        files_in(work / "image"),
        "manifest.json",
        limits,
        wanted=manifest,
        names=(reference.untagged.familiar,),
        digests=(top,),
    )


def _watch(
    work: Path, ref: str, limits: ImportLimits, report: Callable[[str], None]
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
