"""The plan: what this host will do about a policy, as frozen data that a run directory keeps as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from belljar.dataclass import dataclass, json_of
from belljar.plan.jail import JailLimits
from belljar.plan.oci import OciShape
from belljar.plan.qemu import GuestLimits, VmShape
from belljar.policy import Resources, Risk, Tier
from belljar.policy.granted import NOTHING_GRANTED, Granted

if TYPE_CHECKING:
    from belljar.plan.network import NetworkPlan
    from belljar.policy import Policy

PLAN_FORMAT: Final = 1
REAL: Final = "REAL network: "
"""How each sentence about something that is not simulated begins."""
LayerState: TypeAlias = Literal["enforced", "hardware", "emulated", "shared"]
"""`shared`: as good as the kernel that the cell shares with this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """What the plan needs to know of an image: `digest` in hex, and how its maker meant its
    processes to start.

    `program`: its entrypoint and command, "" where they only wait. `has_check`: it has a health
    check of its own.
    """

    digest: str
    name: str
    user: str
    workdir: str
    env: Mapping[str, str]
    program: str = ""
    has_check: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One wall between the workload and the host: what it is, what makes it hold, and how far it can be relied on."""

    name: str
    what: str
    enforced_by: str
    state: LayerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The most of one resource a cell can take: `most` for people, and everything that holds it there, the nearest to the workload first."""

    what: str
    most: str
    enforced_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """What the cell can do at its worst, in sentences."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    reach: tuple[str, ...]
    consume: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One cell, decided.

    `layers` are outermost first. `jail_controllers` are the control groups the jail is put under; without `memory` among them, `memory_by_rlimit` is
    true and the jail's address space is bounded instead. `image` is None when it isn't built: such a plan can be read, not carried out. `env` is the
    image's with the policy's over it. `demanded_tier` is what the policy demands, `tier` what it gets, never less. `vm` and `guest` are set in the microvm
    tier, `oci` in the others. `emulated` is said of a virtual machine only.
    """

    policy: Policy
    risk: Risk
    demanded_tier: Tier
    tier: Tier
    emulated: bool
    image: ImageFacts | None
    layers: tuple[Layer, ...]
    vm: VmShape | None
    guest: GuestLimits | None
    oci: OciShape | None
    jail: JailLimits
    jail_controllers: tuple[str, ...]
    memory_by_rlimit: bool
    user: str
    workdir: str
    env: Mapping[str, str]
    hostname: Literal["random"]
    limits: Resources
    bounds: tuple[Bound, ...]
    blast_radius: BlastRadius
    warnings: tuple[str, ...]
    passed_over: tuple[str, ...] = ()
    """Of the warnings, those that say which tiers that the risk allows were not taken, and why."""
    network: NetworkPlan | None = None
    """None: the cell has no network device at all."""
    rights: Granted = NOTHING_GRANTED
    """What the workload may do inside beyond an ordinary container's."""

    @property
    def machine(self) -> VmShape:
        """The virtual machine. Raises `ValueError` in a tier that has none."""
        if self.vm is None:
            raise ValueError(f"the {self.tier} tier has no virtual machine")
        return self.vm

    @property
    def guest_limits(self) -> GuestLimits:
        """What the virtual machine's guest enforces. Raises `ValueError` in a tier that has none."""
        if self.guest is None:
            raise ValueError(f"the {self.tier} tier has no guest")
        return self.guest

    @property
    def container(self) -> OciShape:
        """The container. Raises `ValueError` in the microvm tier."""
        if self.oci is None:
            raise ValueError(f"the {self.tier} tier has no OCI runtime")
        return self.oci

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values; the same plan always gives the same."""
        shown = {name: json_of(getattr(self, name)) for name in self.__slots__ if name != "policy"}
        return {"version": PLAN_FORMAT, "policy": self.policy.to_json(), **shown}
