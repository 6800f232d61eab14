"""The catalogue against the program that carries it out, and against what is promised of it."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

import belljar
from belljar.probe.catalogue import FINGERPRINT, PROBES

PROGRAM = Path(belljar.__file__).parent / "_bin" / f"probe-{platform.machine()}"
CONTAINMENT = [probe for probe in PROBES if probe.group != FINGERPRINT]


def program_list() -> list[tuple[str, bool]]:
    """What the program itself says it can try, and what of that is quick."""
    output = subprocess.run(
        [PROGRAM, "list"], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    pairs = [line.split("\t") for line in output.splitlines()]
    return [(name, speed == "quick") for name, speed in pairs]


@pytest.mark.promise("7.3")
def test_the_catalogue_is_the_programs_table() -> None:
    """The same attempts and the same quick set, both ways round; names are unique."""
    names = [probe.name for probe in PROBES]
    assert len(set(names)) == len(names)
    assert sorted((probe.name, probe.quick) for probe in PROBES) == sorted(program_list())


GROUPS = {
    *("persistence", "files", "processes", "kernel", "devices", "mounts", "namespaces", "network"),
    *("resources", "channel", "doors", FINGERPRINT),
}
OURS = {
    *("names", "paths", "environment", "mounts", "processes", "command_line", "host_identity"),
    "firmware",
}
INERT_IN_GVISOR = ("channel.open_descriptors", "resources.priority", "resources.killed_last")


@pytest.mark.promise("7.3")
def test_there_are_enough_of_them_in_every_group() -> None:
    """At least 60, in all the promised groups, each with quick ones; no two try the same."""
    assert len(CONTAINMENT) >= 60
    assert {probe.group for probe in PROBES} == GROUPS
    assert {probe.group for probe in PROBES if probe.quick} == GROUPS - {FINGERPRINT}
    assert len({probe.tries for probe in PROBES}) == len(PROBES)
    assert all(re.fullmatch(r"[a-z]+\.[a-z0-9_]+", probe.name) for probe in PROBES)


@pytest.mark.promise("7.3")
def test_containment_has_no_exceptions() -> None:
    """But for three things that gVisor's kernel keeps to itself; each with its reason."""
    excepted = {probe.name: set(probe.expected) for probe in CONTAINMENT if probe.expected}
    assert excepted == {name: {"gvisor"} for name in INERT_IN_GVISOR}
    for probe in PROBES:
        assert set(probe.expected) <= {"container", "gvisor", "microvm"}
        assert all(len(reason) > 10 for reason in probe.expected.values())
    assert not {f"{FINGERPRINT}.{name}" for name in OURS} & {
        probe.name for probe in PROBES if probe.expected
    }


def said(told: bytes, *names: str, code: int = 0) -> bytes:
    command = [str(PROGRAM), *names]
    ran = subprocess.run(command, input=told, check=False, capture_output=True, timeout=120)
    assert ran.returncode == code
    return ran.stdout


def test_a_program_that_is_told_nothing_or_too_much_says_so() -> None:
    """Without its parameters an attempt is an error; too much input is refused as a whole."""
    names = ("files.read_host", "resources.disk")
    missed = b"".join(
        b"%s\terror\tnot told: %s\n" % pair
        for pair in zip((name.encode() for name in names), (b"canary", b"disk_bytes"), strict=True)
    )
    assert said(b"nonce=ab\n", *names) == missed + b"end\t2\tab\n"
    assert said(b"a" * 20_000, *names, code=64) == b""


def test_what_it_says_is_printable_and_bounded() -> None:
    """A hostile name is escaped and cut: one line, three fields, ASCII, at most 400 bytes."""
    canary = b"/" + b"\xff\\\x1b[2J\x7f" * 60
    line, end = said(b"canary=" + canary + b"\n", "files.read_host").splitlines()
    name, outcome, detail = line.split(b"\t")
    assert (name, outcome, end) == (b"files.read_host", b"denied", b"end\t1\t")
    assert 100 < len(detail) <= 400
    assert re.fullmatch(rb"[ -~]+", detail)
    assert b"\\x1b" in detail
