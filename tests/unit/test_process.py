"""Processes by identity, also such as hide behind a dead leader; subordinate ids."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.isolation.survivors import look, remove_survivors
from belljar.process import identify, is_alive, kill, namespaces_of, namespaces_of_threads
from belljar.store.journal import new_cell_id, own_entry
from belljar.subids import parse_subordinate

# The first thread ends (system call 60 on x86-64, 93 on arm64) and leaves a corpse; the other one
# runs on.
HEADLESS = """
import ctypes, os, platform, sys, threading
def work():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z": pass
    print("headless", flush=True)
    sys.stdin.read()
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""


@contextlib.contextmanager
def headless(*prefix: str) -> Iterator[subprocess.Popen[str]]:
    words = [*prefix, sys.executable, "-c", HEADLESS]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "headless\n"
            yield process
        finally:
            process.kill()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_dead_leader_with_living_threads_lives() -> None:
    """By its state alone it would be a corpse; it is known, and can be killed."""
    with headless() as process:
        assert state_of(process.pid) == "Z"
        known = identify(process.pid)
        assert known is not None
        assert is_alive(known)
        kill(known)
        assert process.wait(timeout=60) == -signal.SIGKILL
        assert not is_alive(known)


@pytest.mark.root
def test_a_dead_leader_is_no_hiding_place() -> None:
    """A survivor that only its namespace tells is found behind a dead leader, and killed."""
    with headless("/usr/bin/unshare", "--net") as process:
        assert namespaces_of(process.pid, ("net",)) == {}
        theirs = namespaces_of_threads(process.pid, ("net",))
        found = look(replace(own_entry(new_cell_id(), "cell"), namespaces=theirs)).left
        assert [one.process.pid for one in found if one.process] == [process.pid]
        remove_survivors(found)
        assert process.wait(timeout=60) == -signal.SIGKILL


# Two threads beside the first; their numbers are told.
THREADED = """
import sys, threading
threads = [threading.Thread(target=sys.stdin.read) for _ in range(2)]
for thread in threads: thread.start()
print(*(thread.native_id for thread in threads), flush=True)
"""


def test_threads_of_a_group_are_one_survivor(tmp_path: Path) -> None:
    """A control group lists threads, and no signal can be sent to one."""
    group = tmp_path / f"cell-{(cell_id := new_cell_id())}"
    group.mkdir()
    (tmp_path / "cgroup.procs").touch()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", THREADED], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        threads = process.stdout.readline().split()
        (group / "tasks").write_text("\n".join(threads))
        found = look(replace(own_entry(cell_id, "cell"), cgroups=(group,))).left
        assert [one.process.pid for one in found if one.process] == [process.pid]
        remove_survivors(tuple(one for one in found if one.process))
        assert process.wait(timeout=60) == -signal.SIGKILL


def test_the_first_range_that_is_large_enough() -> None:
    """By name or uid; host root and what is no id are never in it."""
    for text, start in (
        ("ann:100000:65536\n", 100000),
        ("1000:200000:65536\n", 200000),
        ("bob:100000:65536\nann:165536:1000\nann:300000:70000\n", 300000),
        ("ann:100000:65535\n", None),
        ("ann:0:65536\n", None),
        ("ann:4294967000:65536\n", None),
        ("ann:x:65536\nann:100000\n# ann:1:65536\n\nann:-5:65536\nann:１00000:65536\n", None),
    ):
        assert parse_subordinate(text, name="ann", uid=1000) == start, text
