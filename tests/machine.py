"""The machine that all tests share: turns on it, and one set of microVM templates for all stores.

Tests run in several processes (`scripts/test`). What they share lies in a folder of the whole run;
who uses it locks it, and the kernel lets go of a lock when its owner dies.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TEMPLATES_VARIABLE = "BELLJAR_TEST_TEMPLATES"
"""Where a run of tests inside a test takes templates from and leaves them."""
PATIENCE_S = 300
"""For each wait that only guards against a hang: no test depends on how fast the machine is."""
_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)


def shared_folder(base: Path) -> Path:
    """What all processes of this run can reach; `base` is this process's own folder for temporary
    files."""
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def public_folder() -> Path:
    """Where another user finds what root puts there: TMPDIR, unless a directory above it is closed
    to others; then /tmp."""
    folder = Path(tempfile.gettempdir()).resolve()
    is_open = all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))
    return folder if is_open else Path("/tmp")


def link_or_copy(source: str, target: str) -> str:
    """A hard link where the file system allows one, as `shutil.copytree` wants it."""
    if not _linked(Path(source), Path(target)):
        shutil.copy2(source, target)
    return target


def control_groups(*words: str) -> Iterator[Path]:
    """Those with one of these words in their name. Other processes' groups come and go meanwhile,
    which `Path.glob` takes for an error."""
    for folder, inner, _ in os.walk("/sys/fs/cgroup"):
        yield from (Path(folder, name) for name in inner if any(word in name for word in words))


def parted(
    items: list[pytest.Item], stays: Callable[[pytest.Item], bool]
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that stay and those that don't, each in its order."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if stays(item) else left_out).append(item)
    return kept, left_out


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """The machine for one test: beside others, or alone. Who waits to have it alone is not
    overtaken."""
    queue, machine = folder / "queue.lock", folder / "machine.lock"
    if alone:
        with locked(queue), locked(machine):
            yield
        return
    fd = os.open(machine, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with locked(queue):
            fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


@dataclass
class Templates:
    """Templates that were made in one store serve the others. A template's key says what it is made
    of, not where or by whom. Stores of one user share its memory's file, which nobody writes;
    others' get a copy."""

    folder: Path
    stores: dict[Path, tuple[int, int] | None] = field(default_factory=dict)
    _changed_ns: list[int] = field(default_factory=list)

    @contextmanager
    def serving(self, home: Path, owner: tuple[int, int] | None = None) -> Iterator[Path]:
        """Meanwhile this store has what others made, as files of `owner` (uid, gid), and gives what
        it makes."""
        self.take(home, owner)
        self.stores[home] = owner
        try:
            yield home
        finally:
            del self.stores[home]
            self._give(home, owner)

    def take(self, home: Path, owner: tuple[int, int] | None = None) -> None:
        for key in _keys(self.folder) - _keys(home / "templates"):
            _copy(self.folder / key, home / "templates", owner, may_link=owner is None)

    def exchange(self) -> None:
        # After every test: reading all folders costs a millisecond, their times a hundredth of it.
        changed_ns = self._times()
        if changed_ns == self._changed_ns:
            return
        for home, owner in self.stores.items():
            self._give(home, owner)
        for home, owner in self.stores.items():
            self.take(home, owner)
        self._changed_ns = changed_ns  # from before: what another gives meanwhile is seen next time

    def _times(self) -> list[int]:
        """When each folder last got or lost a template; 0 where there is none."""
        folders = [self.folder, *(home / "templates" for home in self.stores)]
        return [_changed_ns(folder) for folder in folders]

    def _give(self, home: Path, owner: tuple[int, int] | None) -> None:
        for key in _keys(home / "templates") - _keys(self.folder):
            _copy(home / "templates" / key, self.folder, None, may_link=owner is None)


def _changed_ns(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _keys(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    return {
        path.parent.name
        for path in folder.glob("*/template.json")
        if _KEY.fullmatch(path.parent.name)
    }


def _copy(template: Path, folder: Path, owner: tuple[int, int] | None, *, may_link: bool) -> None:
    """Whole or not at all; another process may be quicker."""
    if not folder.is_dir():
        folder.mkdir(mode=0o711)
        if owner is not None:
            os.chown(folder, *owner)
    draft = folder / f".copy-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)  # of a copy that failed
    draft.mkdir(mode=0o711)
    for file in template.iterdir():
        if not (may_link and file.name == "memory" and _linked(file, draft / file.name)):
            options = ["--preserve=mode,timestamps", "--sparse=always"]
            copy = ["cp", *options, str(file), str(draft)]
            subprocess.run(copy, check=True, capture_output=True)
    for path in (draft, *draft.iterdir()) if owner is not None else ():
        os.chown(path, *(owner or (-1, -1)))
    try:
        draft.rename(folder / template.name)
    except OSError:
        shutil.rmtree(draft)


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


TEMPLATES = pytest.StashKey[Templates]()


def templates_of(config: pytest.Config, base: Path) -> Templates:
    if TEMPLATES not in config.stash:
        folder = Path(os.environ.get(TEMPLATES_VARIABLE) or shared_folder(base) / "templates")
        config.stash[TEMPLATES] = Templates(folder)
    return config.stash[TEMPLATES]
