"""Facts about a host; a run directory holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from belljar.dataclass import dataclass, json_of


class TrialState(StrEnum):
    """`ABSENT`: KVM isn't offered. `UNUSABLE`: a runtime is missing or too old."""

    PROVEN = "proven"
    REFUTED = "refuted"
    UNPROVEN = "unproven"
    UNUSABLE = "unusable"
    ABSENT = "absent"


class CgroupVersion(StrEnum):
    """V1 is also where version 2 is without controllers."""

    V1 = "v1"
    V2 = "v2"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    state: TrialState
    reason: str = ""
    hint: str = ""

    @classmethod
    def of(cls, problem: str, hint: str = "") -> Trial:
        state = TrialState.REFUTED if problem else TrialState.PROVEN
        return cls(state=state, reason=problem, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsernsFact:
    available: bool
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFact:
    version: CgroupVersion
    parents: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def controllers(self) -> tuple[str, ...]:
        return tuple(sorted(self.parents))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFact:
    """A tool: `ok` when it is there and at least `needed_min`.

    `needed`: a cell of `tier` can't run without it ("oci": both the container and gvisor tier).
    """

    name: str
    use: str
    needed: bool
    path: str = ""
    version: str = ""
    needed_min: str = ""
    ok: bool = False
    hint: str = ""
    tier: str = "microvm"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFact:
    """`kind` is whose command line it has."""

    tier: str
    name: str
    kind: str
    path: str = ""
    version: str = ""
    needed_min: str = ""
    state: TrialState = TrialState.UNUSABLE
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsFact(UsernsFact):
    uid_start: int = 0
    gid_start: int = 0


class CoreState(StrEnum):
    """Where core dumps go. A limit of exactly 1 forbids `PROGRAM`, which the kernel starts as
    root outside all namespaces; none forbids `SERVER`, a socket."""

    FILE = "file"
    PROGRAM = "program"
    SERVER = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFact:
    """`can_limit`: limit 1 can be set."""

    state: CoreState = CoreState.FILE
    pattern: str = "core"
    can_limit: bool = True


_NO_IDS = IdsFact(available=False, reason="it was not looked for", hint="run `belljar doctor`")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """`memory_total_mib` is at most this process's group limit."""

    arch: str
    kernel_release: str
    is_root: bool
    uid: int
    cpu_model: str
    cpus: int
    memory_total_mib: int
    kvm: Trial
    userns: UsernsFact
    cgroup: CgroupFact
    tools: tuple[ToolFact, ...]
    runtimes: tuple[RuntimeFact, ...] = ()
    ids: IdsFact = _NO_IDS
    open_files_max: int = 1024
    cores: CoreFact = CoreFact()
    network_namespaces_max: int = -1
    """user.max_net_namespaces; -1: not known."""
    modules_missing: tuple[str, ...] = ()
    """Missing Python modules of the extra `network`."""
    routes: tuple[str, ...] = ()
    """IPv4 networks of the main table, without defaults."""

    def runtime(self, tier: str) -> RuntimeFact | None:
        return next((runtime for runtime in self.runtimes if runtime.tier == tier), None)

    def to_json(self) -> dict[str, Any]:
        return dict(json_of(self))
