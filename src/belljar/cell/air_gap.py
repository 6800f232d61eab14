"""`host: {air_gap: required}`: held and recorded from a run's start to its end."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final, Literal

from belljar.airgap import State, check_air_gap, is_air_gapped, seen
from belljar.cell.parts import refused
from belljar.errors import BelljarError, HostError, host_errors
from belljar.events import Event, Kind, Recorder
from belljar.ledger.rundir import RunDirectory
from belljar.network.supervisor import netlink
from belljar.policy.loaded import LoadedPolicy
from belljar.units import printable

_HINT: Final = "`belljar airgap check` shows every way; close them, or leave `host.air_gap` out"
_GROUP_LINK: Final = 1  # RTMGRP_LINK
# RTM_NEWLINK of rtnetlink: the kernel says that a device came or changed.
_NEW_LINK: Final = 16
_BUFFER_BYTES: Final = 1 << 20  # what doesn't fit is a change, too
_MAX_CHANGES: Final = 64  # an interface that goes up and down all the time fills no ledger


def hold_air_gap(run: RunDirectory, loaded: LoadedPolicy) -> None:
    """Check and watch the policy's air gap. Raise `HostError`."""
    try:
        changed = run.enter_once("air gap", lambda: held(run.recorder), ends_on_record=True)
        if changed():
            what = "an interface came up while the run must be air-gapped"
            raise HostError(what, where="host.air_gap", hint=_HINT)
    except BelljarError as error:
        run.recorder.record(refused(loaded, error))
        raise


@contextmanager
def held(recorder: Recorder) -> Iterator[Callable[[], bool]]:
    changes = list[str]()

    def has_changed(*problems: str) -> bool:
        arrived = [*problems]
        try:
            while True:
                arrived += changes_in(kernel.recv(1 << 16))
        except OSError as error:
            if error.errno != errno.EAGAIN:  # ENOBUFS; or the air gap is no longer held
                arrived.append(f"changes of the interfaces were lost: {error.strerror}")
        for change in arrived[: max(0, _MAX_CHANGES - len(changes))]:
            recorder.record(Event(kind=Kind.AIR_GAP_CHANGED, data={"reason": change}))
        changes.extend(arrived)
        return bool(changes)

    def check(phase: Literal["start", "end"]) -> list[str]:
        findings = check_air_gap()
        listed = [asdict(each) for each in findings]
        data = {"phase": phase, "air_gapped": is_air_gapped(findings), "findings": listed}
        recorder.record(Event(kind=Kind.AIR_GAP_CHECKED, data=data))
        return [f"{each.name} {each.state}" for each in findings if each.state != State.ABSENT]

    with host_errors("the air gap can't be checked", where="host.air_gap", hint=_HINT):
        # It listens before the check, so that nothing comes up in between.
        kernel = netlink.open_socket()
        with kernel:
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            kernel.bind((0, _GROUP_LINK))
            kernel.settimeout(0)
            if ways := check("start"):
                what = "the policy requires an air gap, and this host has none: "
                what += printable(", ".join(ways))
                raise HostError(what, where="host.air_gap", hint=_HINT)
            try:
                yield has_changed
            finally:
                try:
                    check("end")
                    has_changed()
                except (OSError, ValueError) as error:  # the run is judged all the same, and void
                    has_changed(f"the last check failed: {error}")


def changes_in(reply: bytes) -> Iterator[str]:
    for kind, payload in netlink.messages(reply):
        if kind == _NEW_LINK and len(payload) >= netlink.LINK_BYTES:
            state, evidence = seen(netlink.parse_link(payload))
            if state is not State.ABSENT:
                yield evidence
