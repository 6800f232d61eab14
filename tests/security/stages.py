"""What the tests of jails share."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.as_user import users_python
from tests.machine import PATIENCE_S

import belljar


@dataclass(frozen=True, kw_only=True)
class UserStage:
    """A directory that a user owns; how to run a program of the tests as that user."""

    user: str
    directory: Path
    argv: tuple[str, ...]
    environment: Mapping[str, str]

    def start_runner(self, *words: str, stdin: int | None = None) -> subprocess.Popen[str]:
        argv, pipe, both = [*self.argv, *words], subprocess.PIPE, subprocess.STDOUT
        return subprocess.Popen(
            argv, env=self.environment, text=True, cwd="/", stdin=stdin, stdout=pipe, stderr=both
        )


def said_by(process: subprocess.Popen[str], word: str | None = None) -> dict[str, str]:
    """What a runner says to its end, by the first word; told a word, if one is given."""
    with process:
        output = process.communicate(word, timeout=PATIENCE_S)[0]
    assert process.returncode == 0, output
    return dict(line.split(" ", 1) for line in output.splitlines() if " " in line)


def program_of(
    ids: tuple[int, int] | None, package: Path
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Python as that user, or as this one: the words before a program, and the environment."""
    source = str(package) if ids else str(Path(belljar.__file__).parents[1])
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": source}
    if ids is None:
        return (sys.executable,), environment
    become = ("/usr/bin/setpriv", f"--reuid={ids[0]}", f"--regid={ids[1]}", "--clear-groups")
    return (*become, users_python(*ids)), environment


def ready(process: subprocess.Popen[str], last: str) -> dict[str, int]:
    """The pids from a runner's first lines, once the program has said this word."""
    found: dict[str, int] = {}
    for line in process.stdout or ():
        word, _, number = line.strip().partition(" ")
        if number.isdigit():
            found[word] = int(number)
        if word == last:
            return found
    raise AssertionError("the program did not come up")


@contextmanager
def all_end(*pids: int) -> Iterator[None]:
    """What the block does ends all of these, without anyone's help."""
    pidfds = [os.pidfd_open(pid) for pid in pids]
    try:
        yield
        assert all(select.select([pidfd], [], [], 60.0)[0] for pidfd in pidfds)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
