"""Merging of compose files: `extends`, and a service on top of its base. Pure.

Source: compose-spec 05-services.md (extends), 13-merge.md (mappings are merged, lists appended,
single values replaced).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belljar.compose.values import (
    names_in,
    pairs,
)

_NAMED: Final = frozenset(
    {"environment", "labels", "annotations", "sysctls", "depends_on", "networks", "extra_hosts"}
)
"""Lists or mappings that are merged as mappings."""


# ---- files of the task
_REPLACED: Final = frozenset({"command", "entrypoint", "test"})
"""Lists that are one value."""


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings, merged as Compose does; `own` wins."""
    both = {key: _of_both(key, base[key], own[key]) for key in own if key in base}
    return {**base, **own, **both}


def _of_both(key: str, base: Any, own: Any) -> Any:  # noqa: ANN401 - YAML
    if own is None or base is None or key in _REPLACED:
        return base if own is None else own
    if key in _NAMED and not (isinstance(base, list) and isinstance(own, list)):
        base, own = _as_mapping(key, base), _as_mapping(key, own)
    if isinstance(base, Mapping) and isinstance(own, Mapping):
        return merged(base, own)
    if isinstance(base, list) and isinstance(own, list):
        return [*(item for item in base if item not in own), *own]
    return own


def _as_mapping(key: str, value: Any) -> Any:  # noqa: ANN401 - YAML
    if isinstance(value, Mapping):
        return value
    if key in ("depends_on", "networks"):
        waits = {"condition": "service_started"} if key == "depends_on" else None
        return dict.fromkeys(names_in(value), waits)
    return pairs(value)
