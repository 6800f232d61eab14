"""The author's file: what a cell may be, read, reach and consume.

Lives here: the model, its YAML reader, the presets, and the rule that risk demands a least tier.
Must not: know anything of the host, of images on disk, or of how a cell is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.policy.limits import (
        HostTools,
        Resources,
        Risk,
        Tier,
        demanded_tier,
        least_tier,
        needs_hardware,
    )
    from belljar.policy.load import (
        load_policy,
        load_preset,
        parse_policy,
        policy_of,
        resolve_policy,
    )
    from belljar.policy.loaded import DEFAULT_PRESET, PRESETS, LoadedPolicy, with_tier
    from belljar.policy.model import Policy, policy_schema
    from belljar.policy.network import Network
    from belljar.policy.sections import FileCopy

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "FileCopy",
    "HostTools",
    "LoadedPolicy",
    "Network",
    "Policy",
    "Resources",
    "Risk",
    "Tier",
    "demanded_tier",
    "least_tier",
    "load_policy",
    "load_preset",
    "needs_hardware",
    "parse_policy",
    "policy_of",
    "policy_schema",
    "resolve_policy",
    "with_tier",
]

_LIMITS = "HostTools Resources Risk Tier demanded_tier least_tier needs_hardware"
_LOAD = "load_policy load_preset parse_policy policy_of resolve_policy"
# An import of the plain types alone loads neither pydantic nor a YAML reader.
__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(_LIMITS.split(), "belljar.policy.limits"),
        **dict.fromkeys(_LOAD.split(), "belljar.policy.load"),
        **dict.fromkeys(("DEFAULT_PRESET", "PRESETS"), "belljar.policy.loaded"),
        **dict.fromkeys(("LoadedPolicy", "with_tier"), "belljar.policy.loaded"),
        **dict.fromkeys(("Policy", "policy_schema"), "belljar.policy.model"),
        "Network": "belljar.policy.network",
        "FileCopy": "belljar.policy.sections",
    },
)
