"""The author's file: what a cell may be, read, reach and consume.

Lives here: the model, loading YAML into it with errors that name file, line and column, the
presets, and the rule that risk demands a least tier.
Must not: know anything of the host, of images on disk, or of how a cell is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from belljar.policy.limits import Resources
    from belljar.policy.load import load_policy, load_preset, parse_policy, resolve_policy
    from belljar.policy.loaded import DEFAULT_PRESET, PRESETS, LoadedPolicy, with_tier
    from belljar.policy.model import FileCopy, Policy, policy_schema
    from belljar.policy.network import Network
    from belljar.policy.outside_tools import HostTools
    from belljar.policy.risk import Risk, Tier, demanded_tier, least_tier, needs_hardware
    from belljar.policy.values import policy_of

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
_MODULES: Final = {
    "HostTools": "outside_tools",
    **dict.fromkeys(("FileCopy", "Policy", "policy_schema"), "model"),
    "policy_of": "values",
    "Network": "network",
    "Resources": "limits",
    **dict.fromkeys(("DEFAULT_PRESET", "PRESETS", "LoadedPolicy", "with_tier"), "loaded"),
    **dict.fromkeys(("Risk", "Tier", "demanded_tier", "least_tier", "needs_hardware"), "risk"),
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used: whoever needs `reference` alone loads neither pydantic
    nor a YAML reader."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'load')}"), name)
