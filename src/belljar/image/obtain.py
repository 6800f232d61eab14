"""Getting all images that a task needs: from a Docker daemon or Podman when one has them, else from their registries."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from belljar.errors import BelljarError, HostError
from belljar.image.daemon import daemon_answers, daemon_hosts
from belljar.image.oci import ImportLimits, import_image
from belljar.image.store import MADE_HERE, Image, Store, command_for
from belljar.policy.reference import IMAGE_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An image to get.

    Attributes:
        is_built: a Dockerfile makes it, so no registry has it.
        bases: what that Dockerfile starts from; got when the image itself is nowhere.
        command: what builds it.
        why: it can't even be named, for this reason.
    """

    image: str
    is_built: bool = False
    bases: tuple[str, ...] = ()
    command: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obtained:
    """What came of one: the image, and whether the store had it before; or why it could not be got."""

    wanted: Wanted
    image: Image | None = None
    was_there: bool = False
    error: BelljarError | None = None


def obtain(
    home: Path,
    wanted: Iterable[Wanted],
    *,
    limits: ImportLimits,
    report: Callable[[str], None] = lambda _line: None,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Obtained]:
    """Get each image that the store does not have; the failure of one hides no other. Raises nothing of ours."""
    asks_daemon = any(daemon_answers(host) for host in _hosts(environ))
    left, seen = deque(wanted), set[Wanted]()
    while left:
        each = left.popleft()
        if each in seen:
            continue
        seen.add(each)
        try:
            yield _obtain(home, each, limits, partial(_of, each.image, report), asks_daemon=asks_daemon)
        except BelljarError as error:
            yield Obtained(wanted=each, error=error)
            left.extend(Wanted(image=base) for base in each.bases)


def _of(image: str, report: Callable[[str], None], line: str) -> None:
    report(f"{image}: {line}")


def _hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return daemon_hosts(environ)
    except HostError:
        return ()


def _obtain(
    home: Path, wanted: Wanted, limits: ImportLimits, report: Callable[[str], None], *, asks_daemon: bool
) -> Obtained:
    if wanted.why:
        raise HostError(f"its image is not known: {wanted.why}", where=wanted.image, mend=wanted.command)
    try:
        return Obtained(wanted=wanted, image=Store(home).find(wanted.image), was_there=True)
    except HostError as error:
        missing = error
    if wanted.image in MADE_HERE:
        raise HostError(missing.what, where=wanted.image, mend=f"run `{command_for(wanted.image)}`")
    if asks_daemon:
        try:
            made = import_image(home, f"docker-daemon:{wanted.image}", limits=limits, report=report)
            return Obtained(wanted=wanted, image=made)
        except BelljarError as error:
            from_daemon = error
    if wanted.is_built:
        said = f", and {from_daemon.what}" if asks_daemon else ""
        raise HostError(f"it is built from a Dockerfile{said}", where=wanted.image, mend=f"run `{wanted.command}`")
    if IMAGE_ID.fullmatch(wanted.image):
        raise HostError("no registry knows an image by its id", where=wanted.image, mend=missing.mend)
    made = import_image(home, f"docker://{wanted.image}", limits=limits, report=report)
    return Obtained(wanted=wanted, image=made)
