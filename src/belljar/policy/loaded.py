"""A policy with where it came from, and Belljar's own policies without the reader of people's
files.

Reading a policy takes pydantic and a YAML reader, whose imports are most of a short command's time.
A preset's text is Belljar's own, so what it says stands here as data, too; it counts only while the
text is the one it was written for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from belljar.errors import PolicyError
from belljar.policy.guarding import GuardRules, Stop, Trigger
from belljar.policy.limits import Resources
from belljar.policy.outside_tools import HostTools, default_host_tools
from belljar.policy.risk import Risk, Tier, demanded_tier, least_tier, lowered
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy.files import FileCopy
    from belljar.policy.model import Policy
    from belljar.policy.task_data import TaskData

PRESETS: Final = ("low", "medium", "high", "critical")
DEFAULT_PRESET: Final = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetPolicy:
    """What a preset says, with the fields and properties of `Policy` that plans and cells use."""

    belljar: int = 1
    name: str
    risk: Risk
    tier: Tier | None = None
    image: str = "default"
    resources: Resources = field(default_factory=Resources)
    user: None = None
    workdir: None = None
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    files: tuple[FileCopy, ...] = ()
    network: None = None
    rights: None = None
    host_tools: None = None
    decoys: tuple[()] = ()
    guard: None = None
    on: Mapping[Trigger, Stop] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def images(self) -> tuple[str, ...]:
        """The one image of its cell."""
        return (self.image,)

    @property
    def host_tools_rule(self) -> HostTools:
        """What becomes of tools that act outside of a cell, by its risk."""
        return default_host_tools(self.risk)

    @property
    def guard_rules(self) -> GuardRules:
        """What the guard looks for and does: the defaults."""
        return GuardRules()

    def to_json(self) -> dict[str, Any]:
        """As `Policy.to_json`."""
        tier = None if self.tier is None else self.tier.value
        words = {"risk": self.risk.value, "tier": tier, "resources": asdict(self.resources)}
        named = {name: getattr(self, name) for name in self.__slots__}
        return {
            **named,
            **words,
            "env": {},
            "files": [],
            "network": "none",
            "decoys": "none",
            "on": {},
        }


_PRESET_POLICIES: Final[Mapping[str, tuple[str, PresetPolicy]]] = MappingProxyType(
    {
        "low": (
            "40c803c14a38afc5db99195d6e162a82af0f03d075ea845c2f11091c41507a9c",
            PresetPolicy(name="low", risk=Risk.LOW),
        ),
        "medium": (
            "87faa1f7408a57aafeff111fe76a8d211e6e3676f8a6570f2b3497663e04f708",
            PresetPolicy(name="medium", risk=Risk.MEDIUM),
        ),
        "high": (
            "8c1a35d6f8a01e399be0d3334dcf5815220d1a0bedfb705dd4a5f1b0a0b88f1e",
            PresetPolicy(name="high", risk=Risk.HIGH),
        ),
        "critical": (
            "d3190486202a4b51095c302c9adf6bb593429e7da61d34a62976bc7640ebbd89",
            PresetPolicy(
                name="critical",
                risk=Risk.CRITICAL,
                tier=Tier.MICROVM,
                resources=Resources(
                    disk_bytes=256 << 20, processes=256, lifetime_s=7200.0, exec_timeout_s=300.0
                ),
            ),
        ),
    }
)
"""Preset → SHA-256 of its text, and what that says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """A policy with where it came from.

    `text` is the file as written. `source` is for people: a path, or `preset:high`. `base` is the
    directory that `files` are relative to, absolute; None for a preset. `data`: what a task's
    compose file gives its cells.
    """

    policy: Policy
    text: bytes
    source: str
    base: Path | None = None
    data: TaskData | None = None

    def read_file(self, file: FileCopy) -> bytes:
        """The contents of one of the policy's files, at most `MAX_FILE_BYTES`.

        Raises:
            PolicyError: it is gone, is no regular file, can't be read, is too large, or lies
                outside the policy's directory.
        """
        from belljar.policy.load import read_copied

        return read_copied(self, file)


def preset_text(name: str) -> bytes:
    """The text of one of `PRESETS`."""
    return (Path(__file__).parent / "presets" / f"{name}.yaml").read_bytes()


def known_preset(name: str | None, least: Risk = Risk.LOW) -> LoadedPolicy | None:
    """The preset (None: the default one) as `resolve_policy` gives it, without reading its text as
    YAML; None where that has to be done.

    `least`: the least risk on this host; a preset below it is changed by it.
    """
    name = DEFAULT_PRESET if name is None else name
    if name not in PRESETS:
        return None
    text, (digest, policy) = preset_text(name), _PRESET_POLICIES[name]
    if policy.risk < least or hashlib.sha256(text).hexdigest() != digest:
        return None
    return LoadedPolicy(policy=cast("Policy", policy), text=text, source=f"preset:{name}")


def with_tier(loaded: LoadedPolicy, tier: Tier | str | None) -> LoadedPolicy:
    """The policy with exactly this tier, whoever asks for it beside its author.

    None or "": unchanged.

    Raises:
        PolicyError: it is less than the policy demands, by its risk or by its own `tier`; or no
            tier has that name.
    """
    if not tier:
        return loaded
    try:
        asked = Tier(tier)
    except ValueError:
        from belljar.policy.fields import quoted

        names = ", ".join(str(item) for item in Tier)
        raise PolicyError(
            f"there is no tier {quoted(str(tier))}", where="tier", hint=f"use one of {names}"
        ) from None
    policy = loaded.policy
    if asked < demanded_tier(policy.risk, policy.tier):
        raise PolicyError(
            _lowered(policy, asked),
            where=printable(loaded.source),
            hint=f"ask for {_at_least(policy)} or leave it out",
        )
    known: object = policy
    if isinstance(known, PresetPolicy):
        return replace(loaded, policy=cast("Policy", replace(known, tier=asked)))
    return replace(loaded, policy=policy.model_copy(update={"tier": asked}))


def _lowered(policy: Policy, asked: Tier) -> str:
    if asked < least_tier(policy.risk):
        return lowered(policy.risk, asked)
    return (
        f"tier `{asked}` is less than this policy demands, which is `{policy.tier}`; a tier can "
        f"only be raised"
    )


def _at_least(policy: Policy) -> str:
    least = demanded_tier(policy.risk, policy.tier)
    return " or ".join(f"`{tier}`" for tier in Tier if tier >= least)
