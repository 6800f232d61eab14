"""How long a process has said nothing to one who listened. Pure: time is given."""

from __future__ import annotations


class Silence:
    """Of one process.

    Only time counts in which its owner listened and there was nothing to be heard: what it said
    while the owner was late (a busy host, a slow disk, a terminal's stop) has been waiting, and is
    heard first.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._silent_s: float | None = None

    def heard(self) -> None:
        """It has spoken. The first time it begins to count."""
        self._silent_s = 0.0

    def listened(self, duration_s: float) -> None:
        """For so long somebody listened. Call `heard` afterwards if something was there."""
        if self._silent_s is not None:
            self._silent_s += duration_s

    @property
    def is_over(self) -> bool:
        """Whether it has lasted longer than patience does."""
        return self._silent_s is not None and self._silent_s > self.patience_s
