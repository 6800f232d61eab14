"""`extends`: a service inherits the keys of another service of its file. Pure.

Source: compose-spec 05-services.md (extends) and 13-merge.md: mappings are merged, lists appended,
and what is one value (a command among them) is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belljar.compose.words import mapping, names_in, refusal, text

_REPLACED: Final = frozenset({"command", "entrypoint", "test"})
"""Lists that are one value."""
_NAMED: Final = frozenset({"environment", "labels", "annotations", "sysctls", "depends_on", "networks", "extra_hosts"})
"""What may be a list or a mapping, and is merged as a mapping."""


def read_services(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """All services of a parsed file, each with what it extends. Raises as `with_extended`."""
    written = mapping(document.get("services"), "services")
    return with_extended({name: mapping(each, f"service {name}") for name, each in written.items()})


def with_extended(services: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Each service with what it extends.

    Raises `CannotKeepError` for another file, and for a circle.
    """
    return {name: _extended(name, services, ()) for name in services}


def _extended(name: str, services: Mapping[str, Mapping[str, Any]], by: tuple[str, ...]) -> Mapping[str, Any]:
    service = services[name]
    asked = service.get("extends")
    if asked is None:
        return service
    fields = {"service": asked} if isinstance(asked, str) else mapping(asked, "extends")
    base = text(fields.get("service") or "")
    if set(fields) - {"service"}:
        raise refusal(f"service {name}", "extends", "only a service of the same file can be extended")
    if base not in services or base in (*by, name):
        why = "which does not exist" if base not in services else "which extends it"
        raise refusal(f"service {name}", "extends", f"it extends {base}, {why}")
    own = {key: value for key, value in service.items() if key != "extends"}
    return merged(_extended(base, services, (*by, name)), own)


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings as Compose merges them; `own` wins."""
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
    split = [text(line).partition("=") for line in names_in(value)]
    return {name: item if equals else None for name, equals, item in split}
