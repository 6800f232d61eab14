"""What a person is told when a jail does not come up."""

from __future__ import annotations

import pytest

from belljar.errors import CellError, HostError
from belljar.isolation.jail import start_error


@pytest.mark.parametrize(
    "line",
    [
        "failed step 3 namespaces errno 1: Operation not permitted: clone",
        "failed step 3 namespaces errno 28: No space left on device: clone",
        "failed step 8 private mounts errno 13: Permission denied: /",
        (
            "failed step 4 identity and control groups errno 1: Operation not permitted:"
            " /proc/7/uid_map"
        ),
        "failed step 25 network errno 28: No space left on device: unshare",
    ],
)
def test_a_host_that_forbids_it_is_the_hosts_fault(line: str) -> None:
    """Forbidden namespaces are a `HostError` that names the step and where to look."""
    error = start_error("c-0123456789ab", f"child 7\n{line}\n", "")
    assert isinstance(error, HostError)
    assert "doctor" in error.hint
    assert line.partition(" errno ")[0].split(" ", 3)[3] in error.what


def test_other_steps_are_the_cells() -> None:
    """A missing file is not the host's policy."""
    error = start_error(
        "c-0123456789ab", "failed step 10 files errno 2: No such file or directory: /s/memory\n", ""
    )
    assert isinstance(error, CellError)
    assert "step 10, files, failed: No such file or directory: /s/memory" in error.what


def test_a_program_that_is_not_there_is_named_though_its_status_is_known() -> None:
    """Its own step and the end of what it was to be may both be there when they are read."""
    reason = "No such file or directory: /missing"
    lines = f"child 7\nfailed step 18 run errno 2: {reason}\nfailed step 21 runtime exit 125\n"
    assert reason in start_error("c-0123456789ab", lines, "").what


def test_before_the_status_pipe_is_known() -> None:
    """Wrong options are told on standard error, and still come through."""
    error = start_error(
        "c-0123456789ab", "", "failed step 1 options errno 22: Invalid argument: --what"
    )
    assert "--what" in error.what


def test_silence_is_told_as_such() -> None:
    """Neither word nor end in time."""
    assert "did not come up" in start_error("c-0123456789ab", "", "").what


def test_an_end_without_a_step() -> None:
    """Killed on the way in: that is what is said, not that it took long."""
    assert (
        "ended while it came up (signal 9"
        in start_error("c-0", "child 7\nended signal 9 cause itself\n", "").what
    )


@pytest.mark.parametrize(
    ("line", "diagnosis", "words"),
    [
        (
            "failed step 21 runtime exit 1",
            "",
            "the OCI runtime ended with status 1, and printed nothing",
        ),
        (
            "failed step 21 runtime signal 9",
            "no room",
            "the OCI runtime ended with signal 9, and printed: no room",
        ),
    ],
)
def test_a_runtime_that_fails(line: str, diagnosis: str, words: str) -> None:
    """How it ended and what it said, or that it said nothing; and where more is to be had."""
    error = start_error("c-0123456789ab", f"child 7\n{line}\n", diagnosis)
    assert isinstance(error, CellError)
    assert words in error.what
    assert "doctor" in error.hint


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (
            (
                "failed step 27 subordinate ids errno 1: Operation not permitted:"
                " /usr/bin/newuidmap refused (status 0x100)"
            ),
            "--add-subuids",
        ),
        (
            "failed step 27 subordinate ids errno 2: No such file or directory: /usr/bin/newgidmap",
            "uidmap",
        ),
        (
            "failed step 24 id-mapped trees errno 22: Invalid argument: /s/trees/a/root",
            "id-mapped mounts need",
        ),
        ("failed step 26 device nodes errno 1: Operation not permitted: /dev/null", "CAP_MKNOD"),
        (
            "failed step 28 kernel's file systems errno 1: Operation not permitted: proc",
            "systempaths=unconfined",
        ),
        (
            (
                "failed step 22 mounts errno 95: Operation not supported: the file system of an"
                " overlay's upper directory keeps no user attributes"
            ),
            "Linux 6.6",
        ),
        ("failed step 23 lock mounts errno 28: No space left on device: unshare", "doctor"),
    ],
)
def test_what_the_host_lacks_for_containers(line: str, hint: str) -> None:
    """A `HostError` that says what this host lacks and what to do."""
    error = start_error("c-0123456789ab", f"child 7\n{line}\n", "")
    assert isinstance(error, HostError)
    assert hint in error.hint
    assert "ended while it came up" in start_error("c-0123456789ab", "", "", ended=True).what


def test_what_is_shown_is_escaped() -> None:
    """A path can hold anything."""
    assert (
        "\x1b"
        not in start_error(
            "c-0", "failed step 10 files errno 2: No such file: /a\x1b[2J\n", ""
        ).what
    )
