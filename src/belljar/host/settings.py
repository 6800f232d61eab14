"""What the operator of this host says of every run here: the settings files, and the environment that this
process was started with.

A file that comes with a task (a `.env`, which Inspect loads) can change `os.environ`, but not what the
kernel keeps of the environment at the start.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from belljar.errors import HostError, PolicyError
from belljar.policy import LoadedPolicy, Risk, resolve_policy
from belljar.policy import fields as kinds
from belljar.policy.floor import with_least_risk
from belljar.policy.resources import Strict
from belljar.policy.yaml_tree import Problem, Reading, Tree, closest_mark, field_name, read_tree
from belljar.units import printable

HOST_FILE: Final = Path("/etc/belljar/settings.yaml")
_READING: Final = Reading(what="a settings file")
_HINT: Final = "its fields are `least_risk` and `upstreams`; docs/policy.md has both"


class Upstreams(Enum):
    """Whether runs on this host may reach something real."""

    FORBID = "forbid"
    ALLOW = "allow"


class _File(Strict):
    least_risk: Annotated[Risk, kinds.Choice(words=Risk)] | None = Field(default=None)
    upstreams: Annotated[Upstreams, kinds.Choice(words=Upstreams)] | None = Field(default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of all settings files together. `upstreams` None: none says anything of it. `…_from`: the file
    that decided, for messages.
    """

    least_risk: Risk = Risk.LOW
    upstreams: Upstreams | None = None
    least_risk_from: str = ""
    upstreams_from: str = ""


def environment_at_start() -> dict[str, str]:
    """The variables that this process was started with. Raises `HostError` when they can't be read."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError as exc:
        raise HostError(
            f"the environment at the start can't be read: {exc.strerror}",
            where="/proc/self/environ",
            hint="mount /proc, and let this user read it",
        ) from exc
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def settings_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The host's, then the user's: below `$XDG_CONFIG_HOME`, or `~/.config`."""
    home = Path(environ.get("XDG_CONFIG_HOME", ""))
    if not home.is_absolute():
        home = Path(environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir) / ".config"
    return HOST_FILE, home / "belljar" / "settings.yaml"


def read_settings() -> Settings:
    """The settings in force: of two files the stricter word wins. Raises `PolicyError`, `HostError`."""
    settings = Settings()
    for path in settings_files(environment_at_start()):
        settings = stricter(settings, _read(path), str(path))
    return settings


def stricter(settings: Settings, file: _File, path: str) -> Settings:
    """The settings with a further file's. Pure."""
    risk, risk_from = settings.least_risk, settings.least_risk_from
    if file.least_risk is not None and file.least_risk > risk:
        risk, risk_from = file.least_risk, path
    upstreams, upstreams_from = settings.upstreams, settings.upstreams_from
    if file.upstreams is not None and upstreams is not Upstreams.FORBID:
        upstreams, upstreams_from = file.upstreams, path
    return Settings(
        least_risk=risk,
        upstreams=upstreams,
        least_risk_from=risk_from,
        upstreams_from=upstreams_from,
    )


def within_settings(loaded: LoadedPolicy, settings: Settings) -> LoadedPolicy:
    """The policy with the host's least risk. Pure.

    Raises `PolicyError` for something real where it is forbidden, or can't be at that risk.
    """
    network = loaded.policy.network
    if network is not None and network.upstreams and settings.upstreams is Upstreams.FORBID:
        hosts = ", ".join(printable(upstream.host) for upstream in network.upstreams)
        raise PolicyError(
            f"it reaches something real ({hosts}), which {settings.upstreams_from} forbids",
            where=printable(loaded.source),
            hint="use a stand-in; only who keeps that file can allow it",
        )
    return with_least_risk(loaded, settings.least_risk, where=settings.least_risk_from)


def resolve_here(policy: LoadedPolicy | str | os.PathLike[str] | None) -> LoadedPolicy:
    """As `belljar.policy.resolve_policy`, under the settings of this host. Raises as that, and
    `within_settings`, and `HostError`.
    """
    loaded = policy if isinstance(policy, LoadedPolicy) else resolve_policy(policy)
    return within_settings(loaded, read_settings())


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as stream:
            text = stream.read(_READING.max_bytes + 1)
    except FileNotFoundError:
        return _File()
    except OSError as exc:
        raise PolicyError(
            f"the settings can't be read: {(exc.strerror or type(exc).__name__).lower()}",
            where=printable(str(path)),
            hint="let this user read them, or remove the file",
        ) from exc
    return parse_settings(text, source=str(path))


def parse_settings(text: bytes, *, source: str) -> _File:
    """What a settings file says. Raises `PolicyError` with file, line and column."""
    tree = read_tree(text, _READING)
    if tree.problems:
        raise _refused(tree.problems[0], source)
    if tree.value is None:  # only comments
        return _File()
    if not isinstance(tree.value, dict):
        what = f"settings are a mapping of fields, but this is {kinds.kind_of(tree.value)}"
        raise _refused(Problem(mark=closest_mark(tree, ()), field="", message=what), source)
    try:
        return _File.model_validate(tree.value)
    except ValidationError as exc:
        raise _refused(_problem(tree, exc), source) from exc


def _problem(tree: Tree, exc: ValidationError) -> Problem:
    error = exc.errors(include_url=False)[0]
    path = tuple(error["loc"])
    unknown = error["type"] == "extra_forbidden"
    message = "there is no such setting" if unknown else str(error["ctx"]["error"])
    mark = closest_mark(tree, path, key=unknown)
    return Problem(mark=mark, field=field_name(path), message=message)


def _refused(problem: Problem, source: str) -> PolicyError:
    where = f"{printable(source)}:{problem.mark.line}:{problem.mark.column}"
    what = f"{problem.field}: {problem.message}" if problem.field else problem.message
    return PolicyError(what, where=where, hint=_HINT)
