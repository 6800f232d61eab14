"""The cause of a cell's death, from what the host saw."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from belljar.isolation.jail import JailEnd
from belljar.isolation.microvm.clone import cause_of_death


@dataclass
class Fallen:
    """A VMM that ended, or has not."""

    ended: JailEnd | None
    panicked_of: str = ""
    oom_kills: int = 0
    said: str = ""

    def end(self) -> JailEnd | None:
        """As far as the supervisor has said."""
        return None

    def last_word(self, timeout_s: float) -> JailEnd | None:
        """After a moment."""
        return self.ended

    def count_oom_kills(self) -> int:
        """In its group."""
        return self.oom_kills

    def panic(self) -> str:
        """On its console."""
        return self.panicked_of

    def diagnosis(self) -> str:
        """On its standard error."""
        return self.said


def signalled(number: int, cause: str = "itself") -> JailEnd:
    """An end by a signal."""
    return JailEnd(signal=number, status=None, cause=cause)


EXITED = JailEnd(signal=None, status=0, cause="itself")


@pytest.mark.parametrize(
    ("vmm", "cause"),
    [
        (Fallen(None), ""),
        (Fallen(EXITED, panicked_of="Attempted to kill init!"), "the guest's kernel panicked: Attempted to kill init!"),
        (Fallen(signalled(9)), "the VMM was killed by signal SIGKILL"),
        (
            Fallen(signalled(9), oom_kills=1),
            "the VMM was killed by signal SIGKILL (out of memory in its control group)",
        ),
        (Fallen(signalled(31)), "the VMM was killed by signal SIGSYS"),
        (Fallen(signalled(60)), "the VMM was killed by signal 60"),
        (Fallen(signalled(9, "lifetime")), "its lifetime of 30m was reached"),
        (Fallen(signalled(9, "owner"), panicked_of="later"), "its owner ended it"),
        (Fallen(EXITED), "the guest shut down or the VMM ended with status 0"),
        (Fallen(EXITED, said="virtio: bogus"), "the guest shut down or the VMM ended with status 0: virtio: bogus"),
    ],
)
def test_cause(vmm: Fallen, cause: str) -> None:
    """The deadline and the owner before what the guest shows, a panic before a plain end, a signal with its name."""
    assert cause_of_death(vmm, 1800) == cause
