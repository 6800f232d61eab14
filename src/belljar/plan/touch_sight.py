"""Which touches of a decoy's file a tier's sensor can see on this host. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.dataclass import dataclass
from belljar.host import HostFacts
from belljar.policy import Tier

if TYPE_CHECKING:
    from belljar.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchSight:
    """`sensor`: its name in the record, None: there is none here. `reason`: what it can't see, or
    why there is none."""

    sensor: str | None
    reason: str


_MAPPED = "a file that is only mapped into memory counts as opened"
_FANOTIFY = TouchSight(
    sensor="fanotify",
    reason=f"a process that ends within a millisecond may stay without a name; {_MAPPED}",
)
_INOTIFY = TouchSight(
    sensor="inotify",
    reason=f"no process is known (only root may ask for it); {_MAPPED}",
)
_TRACE = TouchSight(
    sensor="runsc-trace",
    reason="files are known by their paths: what is read under a hard link or after a rename, "
    "by sendfile, copy_file_range or splice, or only mapped, is not seen as read",
)
_GUEST = TouchSight(
    sensor="guest-fanotify",
    reason=f"it is the guest's word, which a guest with a compromised kernel may withhold; "
    f"{_MAPPED}",
)


def touch_sight(tier: Tier, facts: HostFacts) -> TouchSight:
    """What sees who opens or reads a watched file, and what it can't see.

    Whether a decoy is taken, used or sent never depends on it.
    """
    if tier is Tier.CONTAINER:
        return _FANOTIFY if facts.is_root else _INOTIFY
    return _TRACE if tier is Tier.GVISOR else _GUEST


def touch_warnings(policy: Policy, tier: Tier, facts: HostFacts) -> tuple[str, ...]:
    """For the author of a policy with decoys; none without."""
    if not policy.decoys:
        return ()
    sight = touch_sight(tier, facts)
    how = "nothing sees" if sight.sensor is None else f"{sight.sensor} sees"
    return (f"{how} who opens or reads a decoy; what it can't see: {sight.reason}",)
