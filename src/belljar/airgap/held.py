"""A run's air gap: checked at its start, watched, checked at its end; all of it on record."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Literal

from belljar.airgap.check import check_air_gap
from belljar.airgap.finding import Finding, State, is_air_gapped
from belljar.airgap.watch import LinkWatch
from belljar.errors import HostError
from belljar.events import Event, Kind, Recorder
from belljar.units import printable

_HINT: Final = "`belljar airgap check` shows every way; close them, or leave `host.air_gap` out"
_MAX_CHANGES: Final = 64
"""An interface that goes up and down all the time fills no ledger."""


class HeldAirGap:
    """A run's air gap, on record from its entry to its end."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._changes = 0
        self._ended = False

    def __enter__(self) -> HeldAirGap:
        try:
            # It listens before the check, so that nothing comes up in between.
            self._watch = LinkWatch(self._changed)
        except OSError as error:
            what = f"the interfaces can't be watched: {error.strerror}"
            raise HostError(what, where="host.air_gap", hint=_HINT) from error
        try:
            findings = self._check("start")
            if not is_air_gapped(findings):
                raise _not_gapped(findings)
        except BaseException:
            self._ended = True
            self._watch.stop()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.end()

    def raise_if_broken(self) -> None:
        """Raise `HostError` when an interface came up since the start."""
        if self._changes:
            what = "an interface came up while the run must be air-gapped"
            raise HostError(what, where="host.air_gap", hint=_HINT)

    def end(self) -> None:
        """Check once more, and stop watching. Idempotent."""
        if not self._ended:
            self._ended = True
            try:
                self._check("end")
            except (OSError, ValueError) as error:  # no check, no air gap; the run is still judged
                self._changed(f"the last check failed: {error}")
            finally:
                self._watch.stop()

    def _check(self, phase: Literal["start", "end"]) -> tuple[Finding, ...]:
        findings = check_air_gap()
        self._recorder.record(
            Event(
                kind=Kind.AIR_GAP_CHECKED,
                data={
                    "phase": phase,
                    "air_gapped": is_air_gapped(findings),
                    "findings": [each.to_json() for each in findings],
                },
            )
        )
        return findings

    def _changed(self, reason: str) -> None:
        self._changes += 1
        if self._changes <= _MAX_CHANGES:
            self._recorder.record(Event(kind=Kind.AIR_GAP_CHANGED, data={"reason": reason}))


def _not_gapped(findings: tuple[Finding, ...]) -> HostError:
    """Names each way; the evidence is on record."""
    states = (State.PRESENT, State.UNKNOWN)
    names = {state: [each.name for each in findings if each.state is state] for state in states}
    shown = "; ".join(f"{state}: {', '.join(names[state])}" for state in states if names[state])
    what = f"the policy requires an air gap, and this host has none ({printable(shown)})"
    return HostError(what, where="host.air_gap", hint=_HINT)
