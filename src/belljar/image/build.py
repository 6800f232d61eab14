"""Building the images that Belljar makes itself, from the host's own Debian mirror."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from threading import Timer
from typing import IO, Final

from belljar.errors import HostError
from belljar.image.apt import AptSource, PrivateApt, debian_sources, host_acquire_options, host_sources
from belljar.image.cleanse import Entry, belongs, is_rewritten, normalised, plain_path, rewritten, written_entries
from belljar.image.kernel import debian_arch
from belljar.image.pack import pack
from belljar.image.recipes import Recipe, build_modes, mmdebstrap_argv
from belljar.image.store import Image, Store
from belljar.image.tools import drained, failed, kill_group, plain_env, started, tool
from belljar.store.home import need_space
from belljar.store.scratch import scratch_dir

Report = Callable[[str], None]
_TIMEOUT_S: Final = 3600
_CHUNK_BYTES: Final = 1 << 20


def build_image(home: Path, recipe: Recipe, *, mirror: str = "", report: Report = lambda _line: None) -> Image:
    """Build a recipe and put it into the store under its name.

    Packages come from the host's Debian mirror (or `mirror`), checked by apt. Works as root and, with subordinate ids or fakechroot, as
    an ordinary user. Equal package versions give equal bytes. `report` gets a line for each stage, from any thread.
    Raises `HostError` when the host can't; the store is then as it was.
    """
    sources = debian_sources(host_sources(), recipe.codename, mirror=mirror)
    mode = _mode()
    need_space(home, recipe.disk_bytes, f"building the image {recipe.name}")
    with scratch_dir(home) as scratch:
        report("reading the package lists")
        made_s = _archive_date_s(scratch / "apt", sources)
        rootfs = scratch / "rootfs.sqfs"
        argv = _argv(recipe, sources, scratch, mode)
        with _making(argv, scratch, made_s, mode, report) as entries:
            pack(entries, rootfs, made_s=made_s)
        created = datetime.fromtimestamp(made_s, UTC).isoformat().replace("+00:00", "Z")
        return Store(home).add(
            rootfs, recipe.config, name=recipe.name, source=f"mmdebstrap {recipe.codename}", created=created
        )


def _mode() -> str:
    tools = [name for name in ("newuidmap", "fakechroot", "fakeroot") if shutil.which(name)]
    mode, hint = build_modes(is_root=os.geteuid() == 0, subordinate_ids=_has_subordinate_ids(), tools=tools)
    if not mode:
        raise HostError(
            "an ordinary user can't build an image here: no subordinate user ids", where="/etc/subuid", hint=hint
        )
    return mode


def _has_subordinate_ids() -> bool:
    user = pwd.getpwuid(os.geteuid())
    owners = {user.pw_name, str(user.pw_uid)}
    try:
        return any(line.partition(":")[0] in owners for line in Path("/etc/subuid").read_text().splitlines())
    except OSError:
        return False


def _archive_date_s(directory: Path, sources: Sequence[AptSource]) -> int:
    """When the archive was last changed: no file of a package is newer, so it is the time of all that is made here."""
    apt = PrivateApt(directory, sources)
    apt.update()
    return apt.newest_release_s()


def _argv(recipe: Recipe, sources: Sequence[AptSource], scratch: Path, mode: str) -> list[str]:
    listed = scratch / "mirror.sources"
    listed.write_text("\n".join(source.deb822() for source in sources))
    return mmdebstrap_argv(
        recipe,
        program=tool("mmdebstrap"),
        sources=listed,
        arch=debian_arch(),
        mode=mode,
        apt_options=host_acquire_options(),
    )


class _making:  # noqa: N801 - a context manager, used like a function
    """The entries of the file system that mmdebstrap is making, cleansed, while it runs. Ends it when left."""

    def __init__(self, argv: list[str], scratch: Path, made_s: int, mode: str, report: Report) -> None:
        env = plain_env(SOURCE_DATE_EPOCH=str(made_s))
        if mode == "root":
            # Another user's ids can't reach into the scratch directory: then the system's own temporary directory it is.
            env["TMPDIR"] = str(scratch)
        self._argv, self._made_s, self._report = argv, made_s, report
        self._started = started(argv, stdout=subprocess.PIPE, env=env, grace_s=20)

    def __enter__(self) -> Iterator[Entry]:
        self._process = self._started.__enter__()
        self._drained = drained(self._process, on_line=self._say)
        self._complaint = self._drained.__enter__()
        self._timer = Timer(_TIMEOUT_S, kill_group, [self._process])
        self._timer.start()
        return self._entries()

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        self._started.__exit__(None, None, None)
        self._drained.__exit__(None, None, None)

    def _say(self, line: str) -> None:
        if line.startswith("I: "):
            self._report(line[3:])

    def _entries(self) -> Iterator[Entry]:
        if self._process.stdout is None:
            raise ValueError("the maker was started without an output")
        # An early end of the stream is told by the maker's own words, not by the reader's.
        try:
            yield from cleansed(self._process.stdout, made_s=self._made_s)
        except tarfile.TarError:
            self._process.wait()
        status = self._process.wait()
        if status != 0:
            raise failed(self._argv, status, bytes(self._complaint))


def cleansed(stream: IO[bytes], *, made_s: int) -> Iterator[Entry]:
    """The entries of a made file system (a tar stream) that belong into an image, in the stream's order."""
    with closing(tarfile.open(fileobj=stream, mode="r|")) as archive:
        for info in archive:
            path = plain_path(info.name)
            if belongs(path):
                yield _entry(archive, info, path, made_s)
    yield from written_entries(newest_s=made_s)


def _entry(archive: tarfile.TarFile, info: tarfile.TarInfo, path: str, made_s: int) -> Entry:
    plain = normalised(info, newest_s=made_s)
    if info.islnk():
        plain.linkname = plain_path(info.linkname)
    content = archive.extractfile(info) if info.isreg() else None
    if content is None:
        return Entry(info=plain)
    if is_rewritten(path):
        changed = rewritten(path, content.read(), newest_s=made_s)
        plain.size = len(changed)
        return Entry(info=plain, chunks=(changed,))
    return Entry(info=plain, chunks=iter(lambda: content.read(_CHUNK_BYTES), b""))
