"""Why a jail did not come up: from the launcher's status lines to an error for a person. Pure.

The lines are described in `native/jail/supervise.c`. What happened is told by step number and
errno, never by the wording.
"""

from __future__ import annotations

import errno
import re
from enum import IntEnum
from typing import Final

from belljar.errors import BelljarError, CellError, HostError
from belljar.subids import grant_hint
from belljar.units import printable

START_DEADLINE_S: Final = 20.0
"""How long a jail may take to come up."""
ENDED: Final = re.compile(r"ended (exit|signal) (\d+) cause (itself|owner|lifetime)", re.ASCII)
_FAILED: Final = re.compile(r"failed step (\d+) ([^:]+) errno (\d+): (.*)", re.ASCII)
_RUNTIME: Final = re.compile(r"failed step 21 runtime (exit|signal|empty) (\d+)", re.ASCII)


class Step(IntEnum):
    """Steps at which a host may forbid something (all: `native/jail/main.c`)."""

    NAMESPACES = 3
    IDENTITY = 4
    CGROUP_NAMESPACE = 6
    HOST_NAME = 7
    PRIVATE_MOUNTS = 8
    MOUNTS = 22
    LOCK_MOUNTS = 23
    ID_MAPPED_TREES = 24
    NETWORK = 25
    DEVICE_NODES = 26
    SUBORDINATE_IDS = 27


_FORBIDDEN_STEPS: Final = frozenset(
    {
        Step.NAMESPACES,
        Step.IDENTITY,
        Step.CGROUP_NAMESPACE,
        Step.HOST_NAME,
        Step.PRIVATE_MOUNTS,
        Step.LOCK_MOUNTS,
        Step.NETWORK,
    }
)
_FORBIDDING: Final = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EINVAL, errno.ENOSYS}
)
_HINT_FORBIDDEN: Final = (
    "this host forbids what the jail is made of (user namespaces or control groups); "
    "`belljar doctor` says which switch it is"
)
_HINT_COVERED: Final = (
    "parts of this host's /proc or /sys are covered, as in a container: run where they are whole "
    "(docker: `--security-opt systempaths=unconfined`)"
)
_HINT_NO_IDS: Final = (
    f"{grant_hint('USER')}, and install the package uidmap; if the user has them, "
    "newuidmap can't use "
    "its privileges here (no-new-privileges, or a nosuid mount): run outside of that, or as root"
)
_HINTS: Final = {
    Step.ID_MAPPED_TREES: "id-mapped mounts need Linux 5.19 and a file system that can "
    "(ext4, xfs, btrfs): "
    "put BELLJAR_HOME on one",
    Step.DEVICE_NODES: "root needs CAP_MKNOD here, and a device group that allows "
    "null, zero, full, random, "
    "urandom and tty",
}


class RuntimeFailedError(CellError):
    """An OCI runtime did not start its container; `ended`: how it ended, as a phrase."""

    def __init__(self, ended: str, diagnosis: str, *, where: str) -> None:
        self.how = f"ended with {ended}, and said{f': {diagnosis}' if diagnosis else ' nothing'}"
        self.silent = not diagnosis
        super().__init__(
            f"step 21, runtime, failed: the OCI runtime {self.how}",
            where=where,
            hint="`belljar doctor` runs each runtime once and says what it misses",
        )


def start_error(cell_id: str, said: str, diagnosis: str, *, ended: bool = False) -> BelljarError:
    """The error for a jail that did not come up, from its status lines and diagnosis."""
    where = f"jail of cell {cell_id}"
    text = f"{said}\n{diagnosis}"
    if runtime := _RUNTIME.search(text):
        return RuntimeFailedError(_runtime_end(runtime[1], int(runtime[2])), diagnosis, where=where)
    failed = _FAILED.search(text)
    more = f": {diagnosis}" if diagnosis else ""
    if failed is None:
        return CellError(f"{_without_a_step(said, ended=ended)}{more}", where=where)
    step, code, reason = int(failed[1]), int(failed[3]), failed[4]
    what = f"step {step}, {failed[2]}, failed: {printable(reason, max_chars=300)}"
    if step == Step.SUBORDINATE_IDS:
        refused = f"the host gives this user no ids for a jail: {what}{more}"
        return HostError(refused, where=where, hint=_HINT_NO_IDS)
    if hint := _host_hint(step, code, reason):
        return HostError(f"the jail can't be built here: {what}", where=where, hint=hint)
    hint = "if this host is unusual, `belljar doctor` may say why"
    return CellError(f"the jail could not be built: {what}", where=where, hint=hint)


def _runtime_end(how: str, number: int) -> str:
    if how == "empty":
        return "status 0, but it left no process behind"
    return f"signal {number}" if how == "signal" else f"status {number}"


def _without_a_step(said: str, *, ended: bool) -> str:
    end = next((found for line in said.splitlines() if (found := ENDED.fullmatch(line))), None)
    if end is not None and end[3] != "owner":
        return f"the jail ended while it came up ({end[1]} {end[2]}, cause: {end[3]})"
    return (
        "the jail ended while it came up"
        if ended
        else f"the jail did not come up in {START_DEADLINE_S:.0f} s"
    )


def _host_hint(step: int, code: int, reason: str) -> str:
    if step in _FORBIDDEN_STEPS and code in _FORBIDDING:
        return _HINT_FORBIDDEN
    if step == Step.MOUNTS and code == errno.EOPNOTSUPP:
        return "the container tiers need Linux 6.6; the microvm tier does not"
    # The reason ends with the mount's target.
    if (
        step == Step.MOUNTS
        and code in (errno.EPERM, errno.EACCES)
        and reason.endswith((": /proc", ": /sys"))
    ):
        return _HINT_COVERED
    return _HINTS.get(Step(step), "") if step in _HINTS else ""
