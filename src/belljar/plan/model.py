"""The plan: this host's ways to fulfil a policy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from belljar.dataclass import dataclass, field_names, json_of
from belljar.plan.jail import JailLimits
from belljar.plan.oci import OciShape
from belljar.plan.qemu import GuestLimits, VmShape
from belljar.policy.limits import NOTHING_GRANTED, Granted, Resources, Risk, Tier

if TYPE_CHECKING:
    from belljar.plan.network import NetworkPlan
    from belljar.policy.model import Policy

PLAN_FORMAT: Final = 2  # a reader of a run directory's plan tells by it which fields to expect
REAL: Final = "REAL network: "  # how a sentence about something real begins
# `shared`: as good as the host's kernel.
LayerState: TypeAlias = Literal["enforced", "hardware", "emulated", "shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """It runs `program`, "" where it only waits."""

    digest: str
    name: str
    user: str
    workdir: str
    env: Mapping[str, str]
    program: str = ""
    has_check: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer between workload and host."""

    name: str
    what: str
    enforced_by: str
    state: LayerState


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """The worst that the cell can do, in sentences."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    reach: tuple[str, ...]
    consume: tuple[str, ...]


ObstacleCode = StrEnum(  # one reason, as programs tell them apart
    "ObstacleCode",
    "ARCHITECTURE RUNTIME TOOL NO_USER_NAMESPACES NO_IDS CGROUPS KERNEL_TOO_OLD RIGHTS USER GPU "
    "KVM SIZE MODULES NETWORK_NAMESPACES OPEN_FILES",
)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why this host can't. It is not escaped."""

    code: ObstacleCode
    what: str
    hint: str
    where: str = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """`image` None: the plan can only be shown."""

    policy: Policy
    risk: Risk
    demanded_tier: Tier
    tier: Tier
    emulated: bool
    image: ImageFacts | None
    layers: tuple[Layer, ...]
    jail: JailLimits
    jail_controllers: tuple[str, ...]
    memory_by_rlimit: bool
    user: str
    workdir: str
    env: Mapping[str, str]
    hostname: Literal["random"]
    limits: Resources
    blast_radius: BlastRadius
    warnings: tuple[str, ...]
    skipped_tiers: tuple[str, ...] = ()
    network: NetworkPlan | None = None
    rights: Granted = NOTHING_GRANTED

    def to_json(self) -> dict[str, Any]:
        """Another tier's shape is null."""
        names = [name for name in field_names(type(self)) if name != "policy"]
        return {
            "version": PLAN_FORMAT,
            "policy": self.policy.to_json(),
            **dict.fromkeys(("vm", "guest", "oci")),
            **{name: json_of(getattr(self, name)) for name in names},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OciPlan(CellPlan):
    """A cell of the container or gvisor tier."""

    oci: OciShape


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrovmPlan(CellPlan):
    """A cell of the microvm tier."""

    vm: VmShape
    guest: GuestLimits


Plan: TypeAlias = OciPlan | MicrovmPlan  # one cell's, of either shape
