"""One service of a compose file: what becomes of each of its keys. Pure.

Every key that Compose knows is in one of the tables below. A key in none of them is refused, as
Compose has no such key.

- `CONVERTED`: read here.
- `ELSEWHERE`: read by the modules for health, networks, volumes, order and others.
- `TRUE_ANYWAY`: some of its values are true of every cell; others are refused.
- `DROPPED`: left out, with a reason.
- `REFUSED`: refused, with a reason.

Source: compose-spec schema/compose-spec.json, `definitions.service`.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final

from belljar.compose.rights import read_cap_add, read_cap_drop, read_privileged, read_security_opt
from belljar.compose.volumes import tmpfs_of
from belljar.compose.words import (
    CannotKeepError,
    Refusals,
    count,
    mapping,
    names_in,
    processors,
    refusal,
    size,
    switch,
    text,
    words,
)
from belljar.differences import Difference, Kind
from belljar.policy.reference import IMAGE_ID, parse_reference

STAND_INS: Final = frozenset({"", "aisiuk/inspect-tool-support"})
"""Images that only mean *some ordinary Linux with the usual tools*: the default image is one."""
RUNTIMES: Final = frozenset(
    {
        *("runc", "crun", "youki", "runsc", "kata", "kata-runtime"),
        *(f"io.containerd.{name}" for name in ("runc.v2", "runsc.v1", "kata.v2")),
    }
)
"""Whose only meaning is how strongly a container is isolated."""
_GATEWAY: Final = "host-gateway"
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", re.ASCII)
_SEPARATOR: Final = re.compile(r"[=:]")
_MAX_HOSTS: Final = 256
_USUAL_PERIOD_US: Final = 100_000
_ARCHITECTURES: Final = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}
"""The names in `platform` of what the kernel calls a machine."""
_NOT_RESTARTED: Final = "a program that ends is not started again"
_HINT_BUILD: Final = "build it elsewhere, `belljar image import docker-daemon:NAME`, and give the service `image: NAME` (beside its `build`, if you like)"


@dataclass
class Converted:
    """What one service comes to, while it is read: a policy's words, lines of its hosts file (name
    and address), and what differs."""

    service: str
    words: dict[str, Any] = field(default_factory=dict)
    hosts: list[tuple[str, str]] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    def differs(self, kind: Kind, key: str, detail: str, *, hint: str = "") -> None:
        """Note what became of one key."""
        where = f"service {self.service}"
        self.differences.append(Difference(kind=kind, where=where, key=key, detail=detail, hint=hint))

    def changed(self, key: str, detail: str) -> None:
        """It is there in another form."""
        self.differs(Kind.CHANGED, key, detail)

    def granted(self, key: str, detail: str, **rights: object) -> None:
        """A right in a policy's words."""
        self.words["rights"] = {**self.words.get("rights", {}), **rights}
        self.differs(Kind.GRANTED, key, detail)

    def dropped(self, key: str, detail: str) -> None:
        """It is not there, and the model can do the same without it."""
        self.differs(Kind.DROPPED, key, detail)


_Convert = Callable[[Any, Converted], bool]
"""Reads a value; False (or `ValueError`) when a cell can't keep it."""


def read_service(name: str, service: Mapping[str, Any]) -> Converted:
    """Read one service's own keys.

    Raises `CannotKeepError` with each key that a cell can't keep.
    """
    converted = Converted(name)
    refused = Refusals()
    for key, value in service.items():
        if value is None or key in ELSEWHERE or key.startswith("x-"):
            continue
        with refused.collected():
            if not _convert(key, value, converted):
                raise refusal(f"service {name}", key, _reason(key))
    image = text(service.get("image") or "").removesuffix(":latest")
    if service.get("build") is not None and image in STAND_INS:
        with refused.collected():
            why = "a cell does not build images"
            raise refusal(f"service {name}", "build", why, hint=_HINT_BUILD)
    refused.raise_all(converted.differences)
    _quota_as_processors(service, converted)
    return converted


def _reason(key: str) -> str:
    known = {**REFUSED, **_OTHERWISE}
    return known.get(key, "its value can't be read" if key in KEYS else "Compose has no such key")


def _convert(key: str, value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    try:
        if key in DROPPED:
            converted.dropped(key, DROPPED[key])
            return True
        if key in TRUE_ANYWAY:
            return TRUE_ANYWAY[key](value)
        return key in CONVERTED and CONVERTED[key](value, converted)
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CannotKeepError):
            raise
        return False


# ---- keys that are converted


def _image(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    name = text(value)
    if name and IMAGE_ID.fullmatch(name) is None:
        try:
            name = parse_reference(name).familiar
        except ValueError as error:
            raise refusal(f"service {converted.service}", "image", str(error)) from None
    if name not in STAND_INS:
        converted.words["image"] = name
    return True


def _build(_value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    converted.changed(
        "build",
        "built by `belljar image build`, without network, unless the store has an image with the name in "
        "`image`, or the one that `docker compose build` gives it",
    )
    return True


def _to(name: str) -> _Convert:
    def convert(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
        converted.words[name] = text(value)
        return True

    return convert


def _environment(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """A name without a value would be the host's: it is left out, as Compose does where the host
    has none."""
    if isinstance(value, Mapping):
        pairs = {str(name): None if item is None else text(item) for name, item in value.items()}
    else:
        split = [text(line).partition("=") for line in names_in(value)]
        pairs = {name: item if equals else None for name, equals, item in split}
    if left_out := sorted(name for name, item in pairs.items() if item is None):
        names = ", ".join(left_out)
        converted.changed(
            "environment",
            f"this host's environment is not read: variables without a value are not set ({names})",
        )
    converted.words["env"] = {name: item for name, item in pairs.items() if item is not None}
    return True


def _program(value: Any, _converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """Looked at here, so that a fault has the key's name; `program_of` converts it."""
    words(value)
    return True


def _resource(name: str, read: Callable[[Any], Any]) -> _Convert:
    def convert(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
        converted.words["resources"] = {**converted.words.get("resources", {}), name: read(value)}
        return True

    return convert


def _cpus(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """Whole processors; 0 is no limit to Docker, and none to a cell."""
    if float(text(value)) == 0:
        return True
    whole = processors(value)
    if whole != float(text(value)):
        converted.changed("cpus", f"a cell has whole processors: {text(value)} becomes {whole}")
    return _resource("cpus", processors)(value, converted)


def _cpu_quota(value: Any, _converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """A whole number of microseconds, looked at here; both together are `_quota_as_processors`."""
    return isinstance(int(text(value)), int)


def _quota_as_processors(service: Mapping[str, Any], converted: Converted) -> None:
    """A share of processing time is so many processors, rounded up, unless `cpus` says it."""
    quota = int(text(service.get("cpu_quota") or 0))
    period = int(text(service.get("cpu_period") or 0)) or _USUAL_PERIOD_US
    if quota <= 0 or period < 0 or "cpus" in converted.words.get("resources", {}):
        return
    number = -(-quota // period)
    converted.words["resources"] = {**converted.words.get("resources", {}), "cpus": number}
    converted.changed("cpu_quota", f"a cell has whole processors: it becomes {number}")


_DEPLOYED: Final = {"cpus": "cpus", "memory": "mem_limit", "pids": "pids_limit"}
_DEPLOY_IDLE: Final = frozenset({"labels", "mode", "endpoint_mode", "update_config", "rollback_config", "placement"})


def _deploy(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """Limits are kept; replicas and devices are refused; the rest is for a swarm."""
    fields = mapping(value, "deploy")
    if "restart_policy" in fields:
        converted.changed("deploy.restart_policy", _NOT_RESTARTED)
    resources = mapping(fields.get("resources"), "deploy.resources")
    known = {"resources", "replicas", "restart_policy", *_DEPLOY_IDLE}
    if set(fields) - known or set(resources) - {"limits", "reservations"} or not _one(fields.get("replicas", 1)):
        return False
    if set(mapping(resources.get("reservations"), "deploy.resources.reservations")) - {"cpus", "memory"}:
        return False
    for key in fields:
        if key in _DEPLOY_IDLE:
            converted.dropped(f"deploy.{key}", "it only matters to a swarm")
    limits = mapping(resources.get("limits"), "deploy.resources.limits")
    return all(key in _DEPLOYED and CONVERTED[_DEPLOYED[key]](limit, converted) for key, limit in limits.items())


def _read_only(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    if switch(value):
        converted.changed("read_only", "the cell's root file system can be written, and ends with the cell")
    return True


def _tmpfs(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    if tmpfs_of(value):
        converted.changed("tmpfs", "it is a directory of the cell, which ends with the cell; its options are not kept")
    return True


def _hostname(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """`networks.names_of` makes it one of the service's names."""
    if text(value):
        converted.changed("hostname", "others reach the cell by it; inside, a cell's host name is drawn anew")
    return True


def _extra_hosts(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """Lines of the hosts file: text, which opens no way to any address."""
    for name, address in _host_pairs(value):
        if _HOST_NAME.fullmatch(name) is None:
            raise refusal(f"service {converted.service}", "extra_hosts", f"{name} is no host name")
        if address == _GATEWAY:
            why = f"{name} has no address: a cell does not reach the host"
            converted.dropped("extra_hosts", why)
            continue
        try:
            if "%" in address:  # an IPv6 zone may be any text, line breaks too
                raise ValueError("a zone")
            found = ip_address(address.removeprefix("[").removesuffix("]"))
        except ValueError:
            why = f"{name}: {address} is neither an IP address nor `{_GATEWAY}`"
            raise refusal(f"service {converted.service}", "extra_hosts", why) from None
        converted.hosts.append((name, str(found)))
    if len(converted.hosts) > _MAX_HOSTS:
        raise refusal(f"service {converted.service}", "extra_hosts", f"at most {_MAX_HOSTS} names")
    return True


def _host_pairs(value: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - YAML
    """Names and addresses, from a list (`name=ip`, `name:ip`) or a mapping (to one, or a list)."""
    if isinstance(value, Mapping):
        return [
            (str(name), text(address))
            for name, addresses in value.items()
            for address in (addresses if isinstance(addresses, list) else [addresses])
        ]
    split = [_SEPARATOR.split(text(line), maxsplit=1) for line in names_in(value)]
    if any(len(pair) != 2 for pair in split):
        raise ValueError("no name and address")
    return [(name.strip(), address.strip()) for name, address in split]


def _shm_size(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    size(value)
    converted.dropped("shm_size", "shared memory may take at least half of a cell's memory")
    return True


_SOFT_FILES, _HARD_FILES = 1024, 524_288  # as in the guest agent and in plan/oci.py
_ULIMITS: Final[Mapping[str, str]] = {
    "nofile": f"a program may open {_SOFT_FILES:,} files, and may raise that to at most {_HARD_FILES:,}",
    "nproc": "the number of processes is that of the cell: `pids_limit`, or the policy's `processes`",
    "core": "no program writes a core dump",
}
"""What holds instead of a limit."""


def _ulimits(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """No core dumps is what a cell has; other limits are reported, each with what holds instead."""
    if not isinstance(value, Mapping):
        return False
    for name, limit in value.items():
        soft = limit.get("soft") if isinstance(limit, Mapping) else limit
        if name == "core" and text(soft) == "0":
            continue
        holds = _ULIMITS.get(name, "a program has the limit that the cell's kernel begins with")
        converted.dropped(f"ulimits.{name}", holds)
    return True


def _ports(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    if not isinstance(value, Sequence):
        return False
    if value:
        converted.dropped("ports", "no port is published on this host; the range's cells reach all of them")
    return True


def _restart(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    if value not in (False, "no"):
        converted.changed("restart", _NOT_RESTARTED)
    return True


def _platform(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """The image in the store is one of this machine's architecture: another is refused where it is
    imported."""
    system, _, architecture = text(value).partition("/")
    if system != "linux":
        return False
    if architecture.partition("/")[0] in ("", *_ARCHITECTURES.get(platform.machine(), ())):
        converted.dropped("platform", "the image is one of this machine's architecture")
    else:
        detail = f"the image is one of this machine's architecture, {platform.machine()}"
        converted.changed("platform", detail)
    return True


def _runtime(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """One that a container's host may have: a cell's walls are no file's to choose, stronger or
    weaker."""
    if value not in RUNTIMES:
        return False
    converted.dropped("runtime", _OWN_WALLS)
    return True


def _one(value: Any) -> bool:  # noqa: ANN401 - YAML
    return text(value) == "1"


def _is(*allowed: object) -> Callable[[Any], bool]:
    return lambda value: value in allowed


def _off(value: Any) -> bool:  # noqa: ANN401 - YAML
    return not switch(value)


def _empty(value: Any) -> bool:  # noqa: ANN401 - YAML
    return value in ([], {}, "")


CONVERTED: Final[Mapping[str, _Convert]] = {
    "image": _image,
    "build": _build,
    "command": _program,
    "entrypoint": _program,
    "environment": _environment,
    "working_dir": _to("workdir"),
    "user": _to("user"),
    "cpus": _cpus,
    "cpu_count": _cpus,
    "cpu_quota": _cpu_quota,
    "cpu_period": _cpu_quota,
    "security_opt": read_security_opt,
    "cap_drop": read_cap_drop,
    "cap_add": read_cap_add,
    "privileged": read_privileged,
    "mem_limit": _resource("memory", size),
    "pids_limit": _resource("processes", count),
    "deploy": _deploy,
    "ports": _ports,
    "restart": _restart,
    "platform": _platform,
    "hostname": _hostname,
    "extra_hosts": _extra_hosts,
    "read_only": _read_only,
    "tmpfs": _tmpfs,
    "shm_size": _shm_size,
    "ulimits": _ulimits,
    "runtime": _runtime,
}
ELSEWHERE: Final = frozenset(
    {
        *("extends", "depends_on", "healthcheck", "networks", "volumes", "links"),
        *("container_name", "profiles", "env_file", "secrets", "configs"),
    }
)
TRUE_ANYWAY: Final[Mapping[str, Callable[[Any], bool]]] = {
    "init": lambda value: switch(value) in (True, False),
    "expose": lambda value: isinstance(value, Sequence),
    "network_mode": _is("none"),
    "use_api_socket": _off,
    "scale": _one,
    "ipc": _is("private", "shareable", "none"),
    "cgroup": _is("private"),
    "devices": _empty,
}
"""Which values are true of a cell; with any other the key is refused."""
_NO_USE: Final = "nothing in a cell depends on it"
_TUNES_HOST: Final = "it divides a host between containers, and a cell has its own limits"
_OWN_NAMES: Final = "each range answers its own names, and has no others"
_OWN_WALLS: Final = "the policy decides how a cell is isolated"
DROPPED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("annotations", "labels", "label_file", "logging", "attach"), _NO_USE),
    **dict.fromkeys(("develop", "pull_policy", "pull_refresh_after"), _NO_USE),
    **dict.fromkeys(("stdin_open", "tty"), "nobody types into a cell's program"),
    **dict.fromkeys(("stop_signal", "stop_grace_period", "pre_stop"), "a cell is destroyed, not stopped"),
    "cpuset": "`nproc` says as many processors as `cpus` or the policy gives the cell, whichever they are",
    **dict.fromkeys(("mem_reservation", "memswap_limit", "mem_swappiness"), _TUNES_HOST),
    **dict.fromkeys(("cpu_shares", "cpu_percent", "blkio_config"), _TUNES_HOST),
    **dict.fromkeys(("cpu_rt_period", "cpu_rt_runtime"), _TUNES_HOST),
    **dict.fromkeys(("oom_score_adj", "oom_kill_disable", "cgroup_parent"), _TUNES_HOST),
    "storage_opt": "the policy decides how much a cell may write",
    "userns_mode": "the users of a cell are its own, and none of this host's",
    "isolation": _OWN_WALLS,
    **dict.fromkeys(("dns", "dns_opt", "dns_search", "domainname"), _OWN_NAMES),
    "mac_address": "hardware addresses are drawn anew for each range",
}
"""What is left out whatever its value, and why a model can do the same without it."""
_HOST: Final = "it would open this host to the cell"
_OTHER: Final = "it would share with another container"
_ADDRESS: Final = "names and addresses of a range are drawn anew for each"
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("devices", "device_cgroup_rules", "gpus", "pid", "uts", "cgroup"), _HOST),
    **dict.fromkeys(("use_api_socket", "credential_spec"), _HOST),
    "sysctls": "the settings of a cell's kernel are its own",
    **dict.fromkeys(("ipc", "volumes_from", "external_links"), _OTHER),
    "network_mode": "a range has one network and nothing beyond it; only `none` can be asked for",
    "group_add": "put the groups into the image",
    "post_start": "put it into the service's command",
    **dict.fromkeys(("provider", "models"), "a cell uses nothing that is provided elsewhere"),
    "scale": "each service is one cell",
}
"""Why, for the operator. Keys that are in `TRUE_ANYWAY` too are refused for other values."""
_OTHERWISE: Final[Mapping[str, str]] = {
    "deploy": "limits of processors, memory and processes are kept; replicas, GPUs and other devices are not available",
    "runtime": _HOST,
}
"""Why some values of keys that are converted are refused."""
KEYS: Final = frozenset({*CONVERTED, *ELSEWHERE, *TRUE_ANYWAY, *DROPPED, *REFUSED})


# ---- what runs


def program_of(name: str, service: Mapping[str, Any]) -> dict[str, Any]:
    """What runs, in a target cell's words: `command` is all of it; `arguments` stand behind the
    image's entrypoint; neither: the image's own.

    As Compose has it: an `entrypoint` leaves the image's command out; a `command` alone leaves the
    entrypoint; an empty one takes the image's away. Raises `CannotKeepError`.
    """
    entrypoint, command = (service.get(key) for key in ("entrypoint", "command"))
    arguments = None if command is None else words(command)
    if entrypoint is None:
        return {} if arguments is None else {"arguments": arguments}
    whole = [*words(entrypoint), *(arguments or ())]
    if not whole:
        raise refusal(f"service {name}", "entrypoint", "it is empty, and there is no command")
    return {"command": whole}
