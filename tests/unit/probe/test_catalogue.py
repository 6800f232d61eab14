"""The catalogue against the program that carries it out, and against what is promised of it."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

import belljar
from belljar.probe.catalogue import FINGERPRINT, PROBES
from belljar.probe.model import Side

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
    """Every attempt of the program is in the catalogue and the other way round, with the same quick
    set; names are unique."""
    names = [probe.name for probe in PROBES]
    assert len(set(names)) == len(names)
    assert sorted((probe.name, probe.quick) for probe in PROBES) == sorted(program_list())


@pytest.mark.promise("7.3")
def test_there_are_enough_of_them_in_every_group() -> None:
    """At least 60 containment probes, in all the groups that are promised, and a quick set that
    covers each of those: what stops a run is containment."""
    assert len(CONTAINMENT) >= 60
    groups = {probe.group for probe in PROBES}
    assert groups == {
        *(
            "persistence",
            "files",
            "processes",
            "kernel",
            "devices",
            "mounts",
            "namespaces",
            "network",
            "resources",
        ),
        *("channel", "doors", "fingerprint"),
    }
    assert {probe.group for probe in PROBES if probe.quick} == groups - {FINGERPRINT}


@pytest.mark.promise("7.3")
def test_an_entry_says_what_why_and_what_then() -> None:
    """Each entry is three sentences of substance, no two try the same, and its name is one the
    program's output format can carry."""
    for probe in PROBES:
        assert re.fullmatch(r"[a-z]+\.[a-z0-9_]+", probe.name)
        assert all(
            text.endswith(".") and text.isprintable()
            for text in (probe.tries, probe.why, probe.breach)
        ), probe
        assert len(probe.tries) >= 15, probe
        assert len(probe.why) >= 25, probe
    assert len({probe.tries for probe in PROBES}) == len(PROBES)


@pytest.mark.promise("7.3")
def test_containment_has_no_exceptions() -> None:
    """Nothing but a fingerprint is ever expected to be reached, but for three things that gVisor's
    kernel keeps to itself; each exception has its reason."""
    excepted = {probe.name: set(probe.expected) for probe in CONTAINMENT if probe.expected}
    inert_in_gvisor = ("channel.open_descriptors", "resources.priority", "resources.killed_last")
    assert excepted == {name: {"gvisor"} for name in inert_in_gvisor}
    for probe in PROBES:
        assert set(probe.expected) <= {"container", "gvisor", "microvm"}
        assert all(len(reason) > 10 for reason in probe.expected.values())


@pytest.mark.promise("7.3")
def test_names_and_words_of_ours_are_never_expected() -> None:
    """The fingerprints that look for names have no exception in any tier."""
    ours = {
        "names",
        "paths",
        "environment",
        "mounts",
        "processes",
        "command_line",
        "host_identity",
        "firmware",
    }
    excused = {probe.name for probe in PROBES if probe.expected}
    assert not {f"{FINGERPRINT}.{name}" for name in ours} & excused


def test_the_host_decides_where_it_can_see() -> None:
    """Every witness that the host has is used by a probe."""
    witnesses = {probe.witness for probe in PROBES if probe.side is Side.HOST}
    assert {witness.value for witness in witnesses if witness} == {
        *("canary", "socket", "abstract", "tcp", "tcp6", "udp", "pid", "namespaces")
    }


def test_a_program_that_is_told_nothing_or_too_much_says_so() -> None:
    """Without the parameters it needs an attempt is an error, not a refusal; input that would be
    cut is refused as a whole."""
    command = [str(PROGRAM), "files.read_host", "resources.disk"]
    output = subprocess.run(
        command, input=b"nonce=ab\n", check=True, capture_output=True, timeout=120
    ).stdout
    assert (
        output == b"files.read_host\terror\tnot told: canary\nresources.disk\terror\tnot told:"
        b" disk_bytes\nend\t2\tab\n"
    )
    flood = subprocess.run(
        command, input=b"a" * 20_000, check=False, capture_output=True, timeout=120
    )
    assert (flood.returncode, flood.stdout) == (64, b"")


def test_what_it_says_is_printable_and_bounded() -> None:
    """A hostile name in a detail is escaped and cut: one line, three fields, ASCII, at most 400
    bytes."""
    canary = b"/" + b"\xff\\\x1b[2J\x7f" * 60
    command = [str(PROGRAM), "files.read_host"]
    said = subprocess.run(
        command, input=b"canary=" + canary + b"\n", check=True, capture_output=True, timeout=120
    )
    line, end = said.stdout.splitlines()
    name, outcome, detail = line.split(b"\t")
    assert (name, outcome, end) == (b"files.read_host", b"denied", b"end\t1\t")
    assert 100 < len(detail) <= 400
    assert re.fullmatch(rb"[ -~]+", detail)
    assert b"\\x1b" in detail
