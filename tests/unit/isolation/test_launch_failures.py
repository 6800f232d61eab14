"""What a person is told when a jail does not come up."""

from __future__ import annotations

import pytest

from belljar.errors import CellError, HostError
from belljar.isolation.jail import start_error


@pytest.mark.parametrize(
    ("step", "number", "is_hosts"),
    [
        ("3 namespaces", 1, True),
        ("4 identity and control groups", 28, True),
        ("8 private mounts", 13, True),
        ("10 files", 2, False),
        ("22 mounts", 95, True),
        ("22 mounts", 2, False),
        ("24 id-mapped trees", 22, True),
        ("26 device nodes", 1, True),
        ("27 subordinate ids", 2, True),
        ("28 kernel's file systems", 1, True),
        ("28 kernel's file systems", 2, False),
    ],
)
def test_a_step_that_failed(step: str, number: int, is_hosts: bool) -> None:
    """What the host forbids or lacks is a `HostError`, all else the cell's; each names the step and
    what the kernel said, and a path can hold anything."""
    line = f"failed step {step} errno {number}: it failed: /a\x1b[2J"
    error = start_error("c-0123456789ab", f"child 7\n{line}\n", "")
    assert type(error) is (HostError if is_hosts else CellError)
    assert error.hint
    assert f"step {step.replace(' ', ', ', 1)}, failed: it failed: /a" in error.what
    assert "\x1b" not in error.what


@pytest.mark.parametrize(
    ("status", "diagnosis", "words"),
    [
        # Its own step and the end of what it was to be may both be there when they are read.
        (
            "failed step 18 run errno 2: none: /missing\nfailed step 21 runtime exit 125\n",
            "",
            "none: /missing",
        ),
        ("", "failed step 1 options errno 22: Invalid argument: --what", "--what"),
        ("", "", "did not come up"),
        ("child 7\nended signal 9 cause itself\n", "", "ended while it came up (signal 9"),
        ("failed step 21 runtime exit 1\n", "", "ended with status 1, and printed nothing"),
        ("failed step 21 runtime signal 9\n", "no room", "signal 9, and printed: no room"),
    ],
)
def test_other_failures_are_named(status: str, diagnosis: str, words: str) -> None:
    """By what is known of them."""
    error = start_error("c-0123456789ab", status, diagnosis)
    assert isinstance(error, CellError)
    assert words in error.what
