"""Belljar as an ordinary user runs it: a copy of the package and of what it needs that this user
can read, and the command line on a store of its own.

The checkout, its virtual environment and even this interpreter may lie where only root can read. So
the tests, run by root, copy what is needed (some 40 MiB) beside the store, and
use an interpreter of the same version that the user can run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.metadata
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path, PurePath
from typing import Any

import pytest
from packaging.requirements import Requirement
from tests.integration.conftest import Belljar
from tests.integration.handed_groups import HandedGroups
from tests.integration.processes import wait_for
from tests.machine import link_or_copy, public_folder

import belljar
from belljar.subids import NEEDED_IDS, parse_subordinate

REPOSITORY = Path(__file__).parents[2]
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class UsersBelljar(Belljar):
    uid: int
    gid: int
    python: str
    libraries: Path
    groups: HandedGroups | None = None

    def environment(self, **extra: str) -> dict[str, str]:
        words = {"PATH": PATH, "LANG": "C.UTF-8", "NO_COLOR": "1", "COLUMNS": "200"}
        python = {"PYTHONPATH": str(self.libraries), "PYTHONDONTWRITEBYTECODE": "1"}
        homes = {"HOME": str(self.home.parent), "BELLJAR_HOME": str(self.home)}
        return {**words, **python, **homes, **extra}

    def argv(self, *args: str) -> list[str]:
        return [self.python, "-m", "belljar", *args]

    def __call__(
        self,
        *args: str,
        input: bytes = b"",  # noqa: A002 - as the one for root has it
        timeout_s: float = 300,
        **extra: str,
    ) -> subprocess.CompletedProcess[bytes]:
        return self.run(self.argv(*args), stdin=input, timeout_s=timeout_s, **extra)

    def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 300, **extra: str
    ) -> subprocess.CompletedProcess[bytes]:
        process = self.start_program(argv, subprocess.PIPE, extra)
        with process:
            try:
                out, err = process.communicate(stdin, timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def start(self, *args: str, **extra: str) -> subprocess.Popen[bytes]:
        return self.start_program(self.argv(*args), subprocess.DEVNULL, extra)

    def start_program(
        self,
        argv: Sequence[str],
        stdin: int,
        extra: Mapping[str, str],
        output: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """In a session of its own and in no group but the user's."""
        given = None if self.groups is None else self.groups.enter(argv, uid=self.uid, gid=self.gid)
        process = subprocess.Popen(
            given or list(argv),
            stdin=stdin,
            stdout=output,
            stderr=output,
            env=self.environment(**extra),
            cwd="/",
            user=None if given else self.uid,
            group=None if given else self.gid,
            extra_groups=None if given else [],
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def planned(self, *args: str) -> dict[str, Any]:
        shown = self("plan", *args, "--json")
        assert shown.returncode == 0, shown.stderr
        return dict(json.loads(shown.stdout))

    def probed(self, *args: str) -> list[dict[str, Any]]:
        """The findings of every probe, as user and as root of the cell: all contained."""
        said = json.loads(self("probe", *args, "--all", "--json").stdout)
        findings = [finding for report in said["reports"] for finding in report["findings"]]
        assert [finding for finding in findings if finding["verdict"] != "contained"] == []
        assert (said["verdict"], len(said["reports"])) == ("contained", 2)
        return findings

    def processes(self) -> dict[int, str]:
        """Living processes with the user's uid, or his containers', by pid: their command lines."""
        theirs, found = {self.uid, *subordinate_uids(self.uid)}, {}
        for directory in Path("/proc").iterdir():
            if directory.name.isdigit() and uids_of(directory) & theirs:
                with contextlib.suppress(OSError):
                    words = (directory / "cmdline").read_bytes()[:120]
                    found[int(directory.name)] = words.decode(errors="replace")
        return {pid: words for pid, words in found.items() if words}

    def left(self) -> list[str]:
        """What may not be left: processes, mounts, groups, journal entries, scratch files."""
        mountinfo = Path("/proc/self/mountinfo").read_text().splitlines()
        patterns = ("journal/*", "tmp/*", "cells/*", "*/.making-*")
        return [
            *(f"process {pid}: {words}" for pid, words in self.processes().items()),
            *(line for line in mountinfo if str(self.home) in line),
            *(f"control group {path}" for path in (self.groups.cells() if self.groups else ())),
            *(str(path) for pattern in patterns for path in self.home.glob(pattern)),
        ]


def uids_of(process: Path) -> set[int]:
    try:
        status = (process / "status").read_text(errors="replace")
    except OSError:
        return set()
    lines = (line.split() for line in status.splitlines())
    return {int(uid) for words in lines if words[:1] == ["Uid:"] for uid in words[1:]}


def subordinate_uids(uid: int) -> range:
    """What /etc/subuid gives the user; empty when that is nothing."""
    start = parse_subordinate(
        Path("/etc/subuid").read_text(), name=pwd.getpwuid(uid).pw_name, uid=uid
    )
    return range(start, start + NEEDED_IDS) if start is not None else range(0)


def users_python(uid: int, gid: int) -> str:
    """An interpreter of this version that the user can run; skips when this host has none."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [os.path.realpath(sys.executable), *(f"{at}/{name}" for at in PATH.split(":"))]
    for candidate in candidates:
        try:
            argv = [candidate, "-c", "import ssl, sqlite3, ctypes"]
            subprocess.run(
                argv, user=uid, group=gid, extra_groups=[], check=True, capture_output=True, cwd="/"
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return candidate
    pytest.skip(f"no {name} on this host that another user can run")


@contextlib.contextmanager
def installed_for(prepared_home: Path, uid: int, gid: int) -> Iterator[UsersBelljar]:
    """The package, and a store with the prepared images, where the user can read them."""
    python = users_python(uid, gid)
    base = Path(tempfile.mkdtemp(prefix="user-", dir=public_folder()))
    base.chmod(0o755)
    try:
        libraries = copy_package(base / "lib")
        home = copy_own_store(prepared_home, base / "home" / "store", uid, gid)
        yield UsersBelljar(home, uid=uid, gid=gid, python=python, libraries=libraries)
    finally:
        shutil.rmtree(base)


@contextlib.contextmanager
def leaves_nothing(user: UsersBelljar) -> Iterator[None]:
    """What the block does leaves nothing of the user's but records that verify."""
    before = set(user.runs())
    yield
    wait_for(lambda: not user.processes(), "the end of the user's processes")
    assert user.left() == []
    for run in set(user.runs()) - before:
        verified = user("ledger", "verify", str(run))
        assert verified.returncode == 0, verified.stdout + verified.stderr


def kinds(user: UsersBelljar) -> list[str]:
    """The events of the newest run, as far as they are written."""
    runs = user.runs()
    try:
        return [str(event["kind"]) for event in user.events(runs[-1])] if runs else []
    except (OSError, ValueError):
        return []


def started(user: UsersBelljar, *args: str) -> subprocess.Popen[bytes]:
    """`belljar exec` of a command that goes on, when it has started."""
    runs = len(user.runs())
    process = user.start("exec", *args, "--", "sleep", "600")

    def has_begun() -> bool:
        return len(user.runs()) > runs and "exec.started" in kinds(user)

    wait_for(has_begun, "the command's start", within_s=120)
    return process


def copy_own_store(source: Path, target: Path, uid: int, gid: int) -> Path:
    """Copies: they get another owner. The directory above is closed, as Debian's homes are."""
    target.mkdir(parents=True, mode=0o711)
    target.parent.chmod(0o700)
    for name in ("images", "kernels"):
        shutil.copytree(source / name, target / name)
    for name in ("image-names.json", "kernel-current"):
        shutil.copy2(source / name, target / name)
    own(target.parent, uid, gid)
    return target


@contextlib.contextmanager
def another_store(user: UsersBelljar) -> Iterator[Path]:
    """A store of the user's with the images and nothing else."""
    store = user.home.parent / "another"
    copy = (
        'mkdir -m 711 "$2" && cd "$1" && cp -al images kernels image-names.json kernel-current "$2"'
    )
    copied = user.run(["sh", "-c", copy, "sh", str(user.home), str(store)])
    assert copied.returncode == 0, copied.stderr
    try:
        yield store
    finally:
        shutil.rmtree(store, ignore_errors=True)


def copy_package(target: Path) -> Path:
    """Belljar and what it needs to run, readable by all."""
    return Path(shutil.copytree(_package(), target, copy_function=link_or_copy))


@functools.cache
def _package() -> Path:
    """The copy that others of this process are made of, compiled once."""
    folder = Path(tempfile.mkdtemp(prefix="package-", dir=public_folder()))
    atexit.register(shutil.rmtree, folder)
    folder.chmod(0o755)
    source = Path(belljar.__file__).parent
    shutil.copytree(source, folder / "belljar", ignore=shutil.ignore_patterns("__pycache__"))
    compiler = [sys.executable, "-m", "compileall", "-q", str(folder / "belljar")]
    subprocess.run(compiler, check=True)
    copy_distributions(_project()["dependencies"], folder)
    return folder


def _project() -> dict[str, Any]:
    return dict(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"])


def copy_distributions(requirements: Sequence[str], target: Path) -> None:
    """The installed distributions that meet these, and theirs in turn."""
    for distribution in _closure(requirements):
        for file in _with_compiled(distribution.files or []):
            found, copy = Path(str(distribution.locate_file(file))), target / file
            if ".." in file.parts or copy.exists() or not found.is_file():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            if found.stat().st_mode & 0o004:
                link_or_copy(str(found), str(copy))
            else:
                shutil.copyfile(found, copy)
                shutil.copystat(found, copy)  # compiled files go by its times
                copy.chmod(0o644)


def _with_compiled(files: Sequence[PurePath]) -> Iterator[PurePath]:
    """And what this environment's own processes have compiled: the user's could not keep it."""
    for file in files:
        yield file
        if file.suffix == ".py":
            yield PurePath(cache_from_source(str(file)))


def _closure(requirements: Sequence[str]) -> Iterator[importlib.metadata.Distribution]:
    seen: dict[str, set[str]] = {}
    todo = [Requirement(text) for text in requirements]
    while todo:
        wanted = todo.pop()
        extras, had = wanted.extras | {""}, seen.get(wanted.name)
        if had is not None and extras <= had:
            continue
        distribution = importlib.metadata.distribution(wanted.name)
        seen[wanted.name] = extras | (had or set())
        if had is None:
            yield distribution
        needed = [Requirement(text) for text in distribution.requires or []]
        todo += [
            one
            for one in needed
            if one.marker is None or any(one.marker.evaluate({"extra": name}) for name in extras)
        ]


def own(path: Path, uid: int, gid: int) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, uid, gid, follow_symlinks=False)
