"""Getting all images that a task needs: from a daemon that has them, else from registries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from belljar.errors import BelljarError, HostError
from belljar.image.daemon import daemon_answers, daemon_hosts
from belljar.image.oci import ImportLimits, import_image
from belljar.image.store import MADE_HERE, Image, Store
from belljar.policy.reference import IMAGE_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An image to get.

    Attributes:
        build: how it is built, as JSON for `Build`: no registry has it.
        bases: what its Dockerfile starts from; got when the image itself is nowhere.
        why: it can't even be named, for this reason.
    """

    image: str
    build: str = ""
    bases: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obtained:
    """The image, and whether the store had it before; or why it could not be got."""

    wanted: Wanted
    image: Image | None = None
    was_there: bool = False
    error: BelljarError | None = None


Report: TypeAlias = Callable[[str], None]
Build: TypeAlias = Callable[[Wanted, Report], None]
"""Builds an image into the store under its name. Raises `BelljarError`."""


def obtain(
    home: Path,
    wanted: Iterable[Wanted],
    *,
    limits: ImportLimits,
    build: Build,
    report: Report = lambda _line: None,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Obtained]:
    """Get each image that the store does not have; the failure of one hides no other.

    Raises nothing of ours.
    """
    daemon: HostError | bool
    try:
        daemon = any(daemon_answers(host) for host in daemon_hosts(environ))
    except HostError as error:
        daemon = error
    seen = set[Wanted]()

    def each(one: Wanted) -> Iterator[Obtained]:
        if one in seen:
            return
        seen.add(one)

        def report_of(line: str) -> None:
            report(f"{one.image}: {line}")

        try:
            yield _fetched(home, one, limits, report_of, daemon=daemon)
            return
        except BelljarError as error:
            if not one.build:
                yield Obtained(wanted=one, error=error)
                return
        for base in one.bases:
            yield from each(Wanted(image=base))
        try:
            build(one, report_of)
            yield Obtained(wanted=one, image=Store(home).find(one.image))
        except BelljarError as error:
            yield Obtained(wanted=one, error=error)

    for one in wanted:
        yield from each(one)


def _fetched(
    home: Path, wanted: Wanted, limits: ImportLimits, report: Report, *, daemon: HostError | bool
) -> Obtained:
    """From the store, a daemon, or its registry, unless it is built.

    `daemon`: whether one answers, or why none can be asked; its error is in that of the registry.
    """
    if wanted.why:
        raise HostError(f"its image is not known: {wanted.why}", where=wanted.image)
    try:
        return Obtained(wanted=wanted, image=Store(home).find(wanted.image), was_there=True)
    except HostError as error:
        missing = error
    if wanted.image in MADE_HERE:
        raise missing
    unasked: BelljarError | None = daemon if isinstance(daemon, HostError) else None
    if daemon is True:
        try:
            made = import_image(
                home,
                f"docker-daemon:{wanted.image}",
                limits=limits,
                keep_setuid=True,
                report=report,
            )
            return Obtained(wanted=wanted, image=made)
        except BelljarError as error:
            unasked = error
    if unasked is not None:
        report(f"not from a daemon: {unasked.what}")
    if wanted.build:
        raise missing
    if IMAGE_ID.fullmatch(wanted.image):
        what = "a registry can't give an image by its id"
        raise HostError(what + _also(unasked), where=wanted.image, hint=missing.hint) from unasked
    try:
        made = import_image(
            home, f"docker://{wanted.image}", limits=limits, keep_setuid=True, report=report
        )
    except BelljarError as error:
        raise HostError(error.what + _also(unasked), where=error.where, hint=error.hint) from error
    return Obtained(wanted=wanted, image=made)


def _also(unasked: BelljarError | None) -> str:
    return f"; the daemon: {unasked.where}: {unasked.what}" if unasked is not None else ""
