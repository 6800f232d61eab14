"""Settings files of this host, and the environment this process was started with.

A task's `.env` changes `os.environ`, but not the kernel's copy from the start.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from belljar.dataclass import dataclass, replace
from belljar.errors import PolicyError, host_errors
from belljar.policy.limits import Risk
from belljar.policy.loaded import LoadedPolicy
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy.model import Policy

# The administrator's word comes first: a user's can only be stricter.
HOST_FILE: Final = Path("/etc/belljar/settings.yaml")
MAX_BYTES: Final = 64 << 10  # each start reads them


class Upstreams(Enum):
    FORBID = "forbid"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`…_from` is the file that decided."""

    least_risk: Risk = Risk.LOW
    upstreams: Upstreams | None = None
    least_risk_from: str = ""
    upstreams_from: str = ""


def environment_at_start() -> dict[str, str]:
    file, hint = Path("/proc/self/environ"), "mount /proc, and let this user read it"
    with host_errors("the environment at the start can't be read", where=file, hint=hint):
        entries = file.read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def read_settings() -> Settings:
    """Return the stricter of the host's and the user's. Raises `PolicyError`, `HostError`."""
    environ = environment_at_start()
    home = Path(environ.get("XDG_CONFIG_HOME", ""))
    if not home.is_absolute():
        home = Path(environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir) / ".config"
    settings = Settings()
    for path in (HOST_FILE, home / "belljar" / "settings.yaml"):
        if (text := _read(path)) is not None:
            settings = stricter(settings, parse_settings(text, source=str(path)), str(path))
    return settings


def parse_settings(text: bytes, *, source: str) -> dict[str, Any]:
    """Raise `PolicyError` with its position."""
    from pydantic import ConfigDict, ValidationError, create_model

    from belljar.policy.load import problems_of, refusal
    from belljar.policy.yaml_tree import read_tree

    tree = read_tree(text)
    problem = tree.problem
    if problem is None:
        strict = ConfigDict(extra="forbid", hide_input_in_errors=True)
        fields: dict[str, Any] = {"least_risk": (Risk, Risk.LOW), "upstreams": (Upstreams, None)}
        model = create_model("SettingsFile", __config__=strict, **fields)
        try:
            # None: only comments
            read = model.model_validate({} if tree.value is None else tree.value)
            found: dict[str, Any] = read.model_dump(exclude_unset=True)
            return found
        except ValidationError as error:
            problem = problems_of(error, tree)[0]
    hint = "its fields are `least_risk` and `upstreams`; docs/policy.md has both"
    raise refusal((problem,), source, hint=hint)


def stricter(settings: Settings, found: Mapping[str, Any], path: str) -> Settings:
    if found.get("least_risk", settings.least_risk) > settings.least_risk:
        settings = replace(settings, least_risk=found["least_risk"], least_risk_from=path)
    if "upstreams" in found and settings.upstreams is not Upstreams.FORBID:
        settings = replace(settings, upstreams=found["upstreams"], upstreams_from=path)
    return settings


def within_settings(loaded: LoadedPolicy, settings: Settings) -> LoadedPolicy:
    """Raise `PolicyError` for forbidden upstreams, or a risk it can't have."""
    network = loaded.policy.network
    if network is not None and network.upstreams and settings.upstreams is Upstreams.FORBID:
        hosts = ", ".join(printable(upstream.host) for upstream in network.upstreams)
        what = f"it reaches something real ({hosts}), which {settings.upstreams_from} forbids"
        hint = "use a stand-in; only the owner of that file can allow it"
        raise PolicyError(what, where=printable(loaded.source), hint=hint)
    if loaded.policy.risk >= settings.least_risk:
        return loaded
    from belljar.policy.merge import with_least_risk

    return with_least_risk(loaded, settings.least_risk, where=settings.least_risk_from)


PolicyLike: TypeAlias = "LoadedPolicy | Policy | Mapping[str, Any] | str | os.PathLike[str] | None"


def resolve_here(policy: PolicyLike) -> LoadedPolicy:
    if not isinstance(policy, LoadedPolicy):
        from belljar.policy.load import policy_of, resolve_policy

        if policy is None or isinstance(policy, str | os.PathLike):
            policy = resolve_policy(policy)
        else:
            policy = policy_of(policy)
    return within_settings(policy, read_settings())


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        what = f"the settings can't be read: {exc.strerror}"
        hint = "let this user read them, or remove the file"
        raise PolicyError(what, where=printable(str(path)), hint=hint) from exc
