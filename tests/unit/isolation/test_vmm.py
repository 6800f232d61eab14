"""Why a VMM ended by itself, from what the host saw."""

from __future__ import annotations

import pytest

from belljar.isolation.jail import JailEnd
from belljar.isolation.microvm.vmm import explain_end


@pytest.mark.parametrize(
    ("signal", "panic", "oom", "diagnosis", "cause"),
    [
        (
            None,
            "Attempted to kill init!",
            False,
            "",
            "the guest's kernel panicked: Attempted to kill init!",
        ),
        (9, "", False, "", "the VMM was killed by signal SIGKILL"),
        (
            9,
            "",
            True,
            "",
            "the VMM was killed by signal SIGKILL (out of memory in its control group)",
        ),
        (31, "", False, "", "the VMM was killed by signal SIGSYS"),
        (60, "", False, "", "the VMM was killed by signal 60"),
        (None, "", False, "", "the guest shut down or the VMM ended with status 0"),
        (
            None,
            "",
            False,
            "virtio: bogus",
            "the guest shut down or the VMM ended with status 0: virtio: bogus",
        ),
    ],
)
def test_cause(signal: int | None, panic: str, oom: bool, diagnosis: str, cause: str) -> None:
    """A panic before a plain end, a signal with its name."""
    end = JailEnd(signal=signal, status=None if signal else 0, cause="itself")
    assert explain_end(end, panic=panic, out_of_memory=oom, diagnosis=diagnosis) == cause
