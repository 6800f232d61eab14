"""Converts a service's keys by the table `KEYS`, which has all of Compose's. Pure.

Source: compose-spec schema/compose-spec.json, `definitions.service`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from belljar.compose import document
from belljar.compose.document import TaskFiles
from belljar.compose.model import UNKNOWN, Deploy, Service, parse
from belljar.compose.values import GATEWAY, Refusals, refusal
from belljar.dataclass import dataclass, field
from belljar.differences import Difference, DifferenceKind
from belljar.policy.files import Tree
from belljar.policy.limits import DEBUGGER_CALLS, GRANTABLE, NEVER_GRANTED, USUAL_CAPABILITIES
from belljar.policy.reference import is_idle
from belljar.policy.sections import MAX_BYTES, MAX_ENTRIES, TaskFile
from belljar.units import format_size

# By any tier: only a capability that none grants is refused.
_GRANTED: Final = frozenset(name for most in GRANTABLE.values() for name in most.capabilities)
_CALLING: Final = " or ".join(str(tier) for tier, most in GRANTABLE.items() if most.calls)
_CALLS: Final = ", ".join(DEBUGGER_CALLS)


@dataclass
class Converted:
    """`home` None: its file has no directory."""

    service: str
    model: Service = field(default_factory=Service)
    home: TaskFiles | None = None
    words: dict[str, Any] = field(default_factory=dict)
    hosts: list[tuple[str, str]] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    files: list[TaskFile] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    entries: int = 0
    total_bytes: int = 0

    @property
    def where(self) -> str:
        return f"service {self.service}"

    def note(self, key: str, detail: str, kind: DifferenceKind = DifferenceKind.CHANGED) -> None:
        fact = Difference(kind=kind, where=self.where, key=key, detail=detail)
        self.differences.append(fact)

    def granted(self, key: str, detail: str, **rights: object) -> None:
        self.add("rights", **rights)
        self.note(key, detail, DifferenceKind.GRANTED)

    def add(self, section: str, **fields: object) -> None:
        self.words[section] = {**self.words.get(section, {}), **fields}

    def add_file(self, file: TaskFile, tree: Tree) -> None:
        """Raises `ValueError` for too many files or bytes."""
        self.entries += len(tree.entries)
        self.total_bytes += tree.total_bytes
        if self.entries > MAX_ENTRIES or self.total_bytes > MAX_BYTES:
            most = f"{MAX_ENTRIES:,} files and {format_size(MAX_BYTES)}"
            raise ValueError(f"a cell is given at most {most} of its task's directory")
        self.files.append(file)


Convert = Callable[[Any, Converted], None]


@dataclass(frozen=True, slots=True)
class Key:
    """`fate` None: it is kept, or converted."""

    fate: DifferenceKind | None = None
    why: str = ""
    convert: Convert | None = None


def read_service(
    name: str, written: Mapping[str, Any], files: TaskFiles | None, refused: Refusals
) -> Converted:
    """`refused` gets the keys that no cell can keep."""
    where, home = f"service {name}", files.of(written) if files is not None else None
    found: dict[str, Key] = {}
    for key, value in written.items():
        # A variable without a value leaves an empty text, which means what no text means.
        is_blank = key in ("user", "working_dir", "network_mode", "runtime") and value == ""
        if value is None or key.startswith("x-") or is_blank:
            continue
        known = found[key] = KEYS.get(key) or Key(DifferenceKind.REFUSED, UNKNOWN)
        # Docker's `ipc` and `cgroup` are private by default, which shares nothing.
        is_nothing = key in KEYS and value in ([], {}, "", False, "private")
        if known.fate is DifferenceKind.REFUSED and not is_nothing:
            refused.add(where, key, known.why)
    valued = {key: written[key] for key in found if key in Service.model_fields}
    model = parse(Service, valued, where, refused)
    converted = Converted(name, model, home)
    for key, known in found.items():
        value = getattr(model, key) if key in valued else written[key]
        is_set = value or key == "build"  # an empty one has Docker's defaults
        if known.fate in (DifferenceKind.CHANGED, DifferenceKind.DROPPED) and is_set:
            converted.note(key, known.why, known.fate)
        elif known.convert is not None and key in model.model_fields_set:
            with refused.collected():
                known.convert(value, converted)
    is_unnamed = model.image.removesuffix(":latest") in ("", document.INSPECTS_IMAGE)
    if model.build is not None and is_unnamed:
        hint = "build it elsewhere, `belljar image import docker-daemon:NAME`, write `image: NAME`"
        refused.add(where, "build", "a cell does not build images", hint=hint)
    return converted


def _image(name: str, converted: Converted) -> None:
    try:
        image = document.image_of(name)
    except ValueError as error:
        raise refusal(converted.where, "image", str(error)) from None
    if image == document.GENERIC_IMAGE != name:
        converted.note("image", document.GENERIC_DETAIL)
    if image:
        converted.words["image"] = image


def _word(name: str) -> Convert:
    return lambda value, converted: converted.words.update({name: value})


def _resource(name: str, key: str) -> Convert:
    def convert(value: Any, converted: Converted) -> None:  # noqa: ANN401 - a number or a size
        if value is None:
            converted.note(key, "a cell always has a limit: the policy's")
            return
        # Rounded up: half a processor becomes one, not none.
        whole = -int(-value // 1) if name == "cpus" else value
        if whole != value:
            converted.note(key, f"a cell has whole processors: {value:g} becomes {whole}")
        converted.add("resources", **{name: whole})

    return convert


def _environment(pairs: dict[str, str | None], converted: Converted) -> None:
    if left_out := sorted(name for name, item in pairs.items() if item is None):
        why = "this host's environment is not read: variables without a value are not set"
        converted.note("environment", f"{why} ({', '.join(left_out)})")
    converted.words["env"] = {name: item for name, item in pairs.items() if item is not None}


def _deploy(value: Deploy, converted: Converted) -> None:
    limits = value.resources.limits
    for name in limits.model_fields_set:
        resource = "processes" if name == "pids" else name
        convert = _resource(resource, f"deploy.resources.limits.{name}")
        convert(getattr(limits, name), converted)


def _init(value: object, converted: Converted) -> None:
    words = [*(converted.model.entrypoint or ()), *(converted.model.command or ())]
    if value and not (words and is_idle(words)):
        why = "nothing reaps orphans for a program; in tier microvm it gets those of commands too"
        converted.note("init", why)


def _extra_hosts(pairs: list[tuple[str, str]], converted: Converted) -> None:
    for name, address in pairs:
        if address == GATEWAY:
            why = f"{name} has no address: a cell does not reach the host"
            converted.note("extra_hosts", why, DifferenceKind.DROPPED)
        else:
            converted.hosts.append((name, address))


def _security_opt(options: list[str], converted: Converted) -> None:
    for option in options:
        # Docker accepts `:` and `=` between an option's name and its value.
        name, _, rest = option.replace("=", ":", 1).partition(":")
        if name == "no-new-privileges" and rest in ("", "true"):
            converted.add("rights", setuid_programs="off")
        elif (name, rest) == ("seccomp", "unconfined"):
            why = f"the calls by which debuggers work ({_CALLS}) are granted in tier {_CALLING}"
            converted.granted("security_opt", why, seccomp="unconfined")
        elif name in ("label", "apparmor", "seccomp"):
            why = f"{option}: a cell's programs have its own filter"
            converted.note("security_opt", why, DifferenceKind.DROPPED)
        elif (name, rest) != ("no-new-privileges", "false"):  # Docker's default
            why = f"{option}: it would weaken the isolation of the cell"
            raise refusal(converted.where, "security_opt", why)


def _cap_add(listed: list[str], converted: Converted) -> None:
    # Docker accepts a capability with and without the prefix, in either case.
    names = {name.upper().removeprefix("CAP_") for name in listed}
    if "ALL" in names:
        _privileged(True, converted, key="cap_add")  # noqa: FBT003 - as the key's own value
        return
    more = sorted(names - USUAL_CAPABILITIES)
    refused = Refusals()
    for name in more:
        if name not in _GRANTED:
            why = NEVER_GRANTED.get(name, f"what can be granted: {', '.join(sorted(_GRANTED))}")
            refused.add(converted.where, "cap_add", f"{name}: no tier grants it; {why}")
    refused.raise_all()
    if "MKNOD" in names:
        why = "MKNOD: a cell has the usual six devices, and makes no others"
        converted.note("cap_add", why, DifferenceKind.DROPPED)
    if "NET_RAW" in names and "NET_ADMIN" not in names:
        why = "NET_RAW: in a cell with a network, raw sockets are for who has NET_ADMIN"
        converted.note("cap_add", why)
    for name in more:
        able = [str(tier) for tier, most in GRANTABLE.items() if name in most.capabilities]
        why = f"{name}: granted in tier {' or '.join(able)}"
        converted.granted("cap_add", why, capabilities=more)


def _privileged(value: object, converted: Converted, *, key: str = "privileged") -> None:
    if value:
        rights = ", ".join([*(f"CAP_{name}" for name in sorted(_GRANTED)), *DEBUGGER_CALLS])
        why = f"{rights}, as far as its tier has them, are granted in tier {_CALLING}"
        converted.granted(key, why, privileged=True)


_CONVERTED: Final[Mapping[str, Convert]] = {
    "image": _image,
    "environment": _environment,
    "working_dir": _word("workdir"),
    "user": _word("user"),
    "cpus": _resource("cpus", "cpus"),
    "security_opt": _security_opt,
    "cap_add": _cap_add,
    "privileged": _privileged,
    "mem_limit": _resource("memory", "mem_limit"),
    "pids_limit": _resource("processes", "pids_limit"),
    "init": _init,
    "extra_hosts": _extra_hosts,
    "deploy": _deploy,
}
_TABLE: Final = tomllib.loads(Path(__file__).with_name("keys.toml").read_text("utf-8"))
KEYS: Final[Mapping[str, Key]] = {  # every key that Compose knows of a service
    **dict.fromkeys((*Service.model_fields, "expose"), Key()),
    **{key: Key(convert=convert) for key, convert in _CONVERTED.items()},
    **{
        key: Key(DifferenceKind(fate), group["why"])
        for fate, groups in _TABLE.items()
        for group in groups
        for key in group["keys"]
    },
}
