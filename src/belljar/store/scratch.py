"""Private working directories that a crash doesn't leave behind.

Names bear the owner: `<pid>-<start time>-<random>`. The next user removes dead owners' directories.
A process of another PID namespace takes every owner for dead, so that directories are locked, too.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from belljar.process import ProcessId, is_alive, this_process
from belljar.store.home import make_store_dir, store_errors, sync_file
from belljar.store.locks import alone, claimed, in_use

# A tree of millions of files on a slow disk.
_REMOVE_TIMEOUT_S: Final = 600.0
# Pid and start time of its owner: a directory whose owner is dead is anybody's to remove.
_NAME: Final = re.compile(r"(\d{1,10})-(\d{1,20})-[a-z0-9_-]+", re.ASCII)
# Prefix of parts being made or removed.
MAKING: Final = ".making-"
# Prefix of files being written; its dot keeps them out of listings.
DRAFT: Final = ".draft-"


@contextmanager
def scratch_dir(home: Path) -> Iterator[Path]:
    make_store_dir(home)
    make_store_dir(home / "tmp")
    with owned_dir(home / "tmp") as path:
        yield path


@contextmanager
def owned_dir(parent: Path, *, prefix: str = "") -> Iterator[Path]:
    """Make a private directory, removed afterwards; sweep `parent` first."""
    sweep(parent, prefix=prefix)
    with ExitStack() as held:
        while True:
            # The name of an owned one: a sweep finds it whatever happens to this process
            path = parent / owned_name(prefix, secrets.token_hex(4))
            with store_errors(parent):
                path.mkdir(mode=0o700)
            try:
                held.enter_context(claimed(path))
            except FileNotFoundError:
                continue  # another PID namespace's sweep took it before the lock: once more
            except BaseException:
                remove_tree(path)  # it isn't registered yet
                raise
            break
        held.callback(remove_tree, path)
        yield path


def owned_name(prefix: str = "", what: str = "") -> str:
    """Return a name that `sweep` knows as this process's."""
    owner = this_process()
    return f"{prefix}{owner.pid}-{owner.start_ticks}-{what}"


def write_whole(path: Path, text: str, *, is_durable: bool = False) -> None:
    """Replace a file's text whole. Raises `OSError`."""
    draft = path.with_name(owned_name(DRAFT, f"{path.stem}-{secrets.token_hex(4)}"))
    try:
        draft.write_text(text)
        # To outlast a power failure: first its contents, then its name.
        if is_durable:
            sync_file(draft)
        draft.replace(path)
        if is_durable:
            sync_file(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def is_owned(name: str, *, prefix: str = "") -> bool:
    """Return true for the name of a living process."""
    match = _NAME.fullmatch(name.removeprefix(prefix))
    return match is not None and is_alive(ProcessId(pid=int(match[1]), start_ticks=int(match[2])))


def sweep(parent: Path, *, prefix: str = "") -> list[Path]:
    """Remove this user's orphans and return their paths."""
    removed = []
    for path in orphans(parent, prefix=prefix):
        is_free = True  # a file, or gone, or nothing that this user can open: nobody claims it
        with ExitStack() as held:  # under its lock: it may be claimed until then
            with suppress(OSError):
                is_free = held.enter_context(alone(path))
            if is_free:
                remove_tree(path)
                removed.append(path)
    return removed


def orphans(parent: Path, *, prefix: str = "") -> list[Path]:
    """Return this user's unlocked directories without living owners."""
    found = []
    for path in parent.glob(f"{prefix}*"):
        name = path.name.removeprefix(prefix)
        if _NAME.fullmatch(name) and not is_owned(name):
            with suppress(FileNotFoundError):  # another sweep has just removed it
                if path.lstat().st_uid == os.geteuid() and not in_use(path):
                    found.append(path)
    return found


def retire(path: Path) -> Path:
    """Rename a part for the next sweep."""
    what = f"retired-{path.name[:12]}-{secrets.token_hex(4)}"  # one that is claimed may be there
    retired = path.with_name(owned_name(MAKING, what))
    path.rename(retired)
    return retired


def retire_unclaimed(directory: Path) -> Path | None:
    with suppress(FileNotFoundError), alone(directory) as free:
        return retire(directory) if free else None
    return None


def remove_tree(path: Path) -> None:
    """Remove a tree of any modes. Follows no link."""
    with suppress(RecursionError):
        shutil.rmtree(path, onerror=_allow_and_retry)
    if os.path.lexists(path):  # too deep for `shutil`
        # An absolute path: what is first in PATH must not remove trees.
        argv = ["/bin/rm", "-rf", "--", str(path)]
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, check=False, timeout=_REMOVE_TIMEOUT_S, capture_output=True)


def _allow_and_retry(_function: object, name: str, _info: object) -> None:
    path = Path(name)
    try:
        parent = path.parent
        # unlink(2) needs write and search permission on the directory, which a guest's tree may
        # lack.
        parent.chmod(stat.S_IMODE(parent.lstat().st_mode) | 0o700)
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return
