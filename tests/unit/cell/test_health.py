"""The check of a cell's health."""

from __future__ import annotations

import errno
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.cell.health import ARGV, Cause, HealthFinding, damage, read_health
from belljar.channel import ExecOutput

SOUND = HealthFinding(began=True, ended=True, ran=True)
NO_CHILD, NEVER_RAN = replace(SOUND, ended=False, ran=False), replace(SOUND, ran=False)
LATE = HealthFinding(timed_out=True)


def fails(stage: str, code: int) -> HealthFinding:
    return HealthFinding(stage=stage, errno=code)


NO_SHELL = fails("exec", errno.ENOENT)
CASES: dict[str, tuple[HealthFinding, HealthFinding, Cause | None]] = {
    "sound": (SOUND, SOUND, None),
    "no shell any more": (SOUND, NO_SHELL, Cause.SHELL_MISSING),
    "no shell from the start": (NO_SHELL, NO_SHELL, None),
    "nor now a process": (NO_SHELL, fails("fork", errno.EAGAIN), Cause.PROCESS_TABLE_FULL),
    "a shell that appeared": (NO_SHELL, SOUND, None),
    "a shell that may not be run": (SOUND, fails("exec", errno.EACCES), Cause.CANNOT_START),
    "a shell that fails": (SOUND, HealthFinding(), Cause.PROGRAMS_BROKEN),
    "no fork": (SOUND, HealthFinding(processes_full=True), Cause.PROCESS_TABLE_FULL),
    "a shell that ends where it forks": (SOUND, NO_CHILD, Cause.PROCESS_TABLE_FULL),
    "a program that can't be run": (SOUND, NEVER_RAN, Cause.PROGRAMS_BROKEN),
    "a program that never could": (NEVER_RAN, NEVER_RAN, None),
    "a directory gone": (SOUND, fails("cwd", errno.ENOENT), Cause.CANNOT_START),
    "an account gone": (SOUND, fails("user", errno.ENOENT), Cause.CANNOT_START),
    "no answer": (SOUND, LATE, Cause.UNRESPONSIVE),
    "no answer, as before": (LATE, LATE, None),
    "dead, and no baseline": (LATE, HealthFinding(died="why"), Cause.AGENT_DIED),
}


@pytest.mark.promise("7.5")
@pytest.mark.parametrize("name", CASES)
def test_what_changed_since_the_baseline_is_damage(name: str) -> None:
    """Each kind has its cause; what was so from the start is none."""
    baseline, now, cause = CASES[name]
    found = damage(baseline, now)
    assert (found[0] if found else None) == cause


def test_the_script_says_what_is_read() -> None:
    """A real shell's answer to the real command."""
    done = subprocess.run(ARGV, capture_output=True, check=True)
    assert read_health(ExecOutput(returncode=0, code=0, stdout=done.stdout)) == SOUND


@pytest.mark.promise("7.5")
@given(stdout=st.binary(max_size=9000), code=st.integers(0, 255))
def test_no_answer_of_a_guest_is_an_error(stdout: bytes, code: int) -> None:
    """Any bytes are read, and show damage unless they say that all was done."""
    found = read_health(ExecOutput(returncode=code, code=code, stdout=stdout))
    assert (damage(SOUND, found) is None) is (found.ended and found.ran)
