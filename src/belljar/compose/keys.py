"""What becomes of each key of a service: the table `KEYS`, which has all of Compose's. Pure.

The reference page "Compose keys" is generated from it.

Source: compose-spec schema/compose-spec.json, `definitions.service`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from belljar.compose.model import FOR_HOST, UNKNOWN, Dependency, Deploy, Service, parse
from belljar.compose.values import GATEWAY, TMPFS, Refusals, changed, dropped, refusal
from belljar.differences import Difference, Kind
from belljar.policy.files import Tree
from belljar.policy.limits import DEBUGGER_CALLS, GRANTABLE, NEVER_GRANTED, USUAL_CAPABILITIES
from belljar.policy.reference import IMAGE_ID, parse_reference
from belljar.policy.task_data import MAX_BYTES, MAX_ENTRIES, TakenVolume, TaskFile
from belljar.units import format_size

STAND_INS: Final = frozenset({"", "aisiuk/inspect-tool-support"})
"""Images that stand for the default image."""
_USUAL_PERIOD_US: Final = 100_000
_ARCHITECTURES: Final = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}
_SOFT_FILES, _HARD_FILES = 1024, 524_288  # as in the guest agent and in plan/oci.py
_GRANTED: Final = frozenset(name for most in GRANTABLE.values() for name in most.capabilities)
_CAPABLE: Final = " or ".join(str(tier) for tier, most in GRANTABLE.items() if most.capabilities)
_CALLING: Final = " or ".join(str(tier) for tier, most in GRANTABLE.items() if most.calls)
_CALLS: Final = ", ".join(DEBUGGER_CALLS)


class Outcome(Enum):
    """What becomes of a key."""

    APPLIED = "converted"
    LIMITED = "kept or refused"
    """Only values that are true of every cell are kept."""
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass
class Converted:
    """One service as a cell: policy fields, program, what its files hold, what differs."""

    service: str
    model: Service = field(default_factory=Service)
    words: dict[str, Any] = field(default_factory=dict)
    program: dict[str, Any] = field(default_factory=dict)
    health: dict[str, Any] | None = None
    hosts: list[tuple[str, str]] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    files: list[TaskFile] = field(default_factory=list)
    volumes: list[TakenVolume] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    entries: int = 0
    total_bytes: int = 0

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f"service {self.service}"

    def changed(self, key: str, detail: str) -> None:
        """Note a key that is kept in another form."""
        self.differences.append(changed(self.where, key, detail))

    def dropped(self, key: str, detail: str) -> None:
        """Note a key that is left out."""
        self.differences.append(dropped(self.where, key, detail))

    def granted(self, key: str, detail: str, **rights: object) -> None:
        """Note a right, in a policy's words."""
        self.add("rights", **rights)
        fact = Difference(kind=Kind.GRANTED, where=self.where, key=key, detail=detail)
        self.differences.append(fact)

    def add(self, section: str, **fields: object) -> None:
        """Set fields of a section of the policy."""
        self.words[section] = {**self.words.get(section, {}), **fields}

    def add_file(self, file: TaskFile, tree: Tree) -> None:
        """Add one copy. Raises `ValueError` for too many files or bytes."""
        self.entries += len(tree.entries)
        self.total_bytes += tree.total_bytes
        if self.entries > MAX_ENTRIES or self.total_bytes > MAX_BYTES:
            most = f"{MAX_ENTRIES:,} files and {format_size(MAX_BYTES)}"
            raise ValueError(f"a cell is given at most {most} of its task's directory")
        self.files.append(file)


Convert = Callable[[Any, Converted], None]


@dataclass(frozen=True, slots=True)
class Key:
    """What becomes of a key; `convert` takes its value."""

    outcome: Outcome
    why: str = ""
    convert: Convert | None = None


def read_service(name: str, written: Mapping[str, Any], refused: Refusals) -> Converted:
    """Convert a service; keys that cells can't keep go to `refused`."""
    where, known = f"service {name}", {}
    for key, value in written.items():
        if value is None or key.startswith("x-"):
            continue
        fate = KEYS.get(key)
        if fate is None or fate.outcome is Outcome.REFUSED:
            refused.add(where, key, fate.why if fate else UNKNOWN)
        elif fate.outcome is not Outcome.DROPPED:
            known[key] = value
    reasons = {key: fate.why for key, fate in KEYS.items()}
    model = parse(Service, known, where, refused, reasons)
    converted = Converted(name, model)
    for key, value in written.items():
        fate = KEYS.get(key)
        if value is not None and fate is not None and fate.outcome is Outcome.DROPPED:
            converted.dropped(key, fate.why)
        elif fate is not None and fate.convert is not None and key in model.model_fields_set:
            with refused.collected():
                fate.convert(getattr(model, key), converted)
    if model.build is not None and model.image.removesuffix(":latest") in STAND_INS:
        refused.add(where, "build", "a cell does not build images", hint=_HINT_BUILD)
    quota, period = model.cpu_quota, model.cpu_period or _USUAL_PERIOD_US
    if quota > 0 and period >= 0 and "cpus" not in converted.words.get("resources", {}):
        number = -(-quota // period)
        converted.add("resources", cpus=number)
        converted.changed("cpu_quota", f"a cell has whole processors: it becomes {number}")
    return converted


_HINT_BUILD: Final = (
    "build it elsewhere, `belljar image import docker-daemon:NAME`, and give the service "
    "`image: NAME` (beside its `build`, if you like)"
)


# ---- keys that are converted


def _image(name: str, converted: Converted) -> None:
    if name and IMAGE_ID.fullmatch(name) is None:
        try:
            name = parse_reference(name).familiar
        except ValueError as error:
            raise refusal(converted.where, "image", str(error)) from None
    if name not in STAND_INS:
        converted.words["image"] = name


def _build(_value: object, converted: Converted) -> None:
    converted.changed(
        "build",
        "built by `belljar image build`, without network, unless the store has an image with the "
        "name in `image`, or the one that `docker compose build` gives it",
    )


def _word(name: str) -> Convert:
    return lambda value, converted: converted.words.update({name: value})


def _resource(name: str) -> Convert:
    return lambda value, converted: converted.add("resources", **{name: value})


def _environment(pairs: dict[str, str | None], converted: Converted) -> None:
    if left_out := sorted(name for name, item in pairs.items() if item is None):
        why = "this host's environment is not read: variables without a value are not set"
        converted.changed("environment", f"{why} ({', '.join(left_out)})")
    converted.words["env"] = {name: item for name, item in pairs.items() if item is not None}


def _cpus(number: float, converted: Converted) -> None:
    if number == 0:  # no limit
        return
    whole = max(1, int(-(-number // 1)))
    if whole != number:
        converted.changed("cpus", f"a cell has whole processors: {number:g} becomes {whole}")
    converted.add("resources", cpus=whole)


def _deploy(value: Deploy, converted: Converted) -> None:
    limits = value.resources.limits
    for key in (key for key in Deploy.model_fields if key in value.model_fields_set):
        if key == "restart_policy":
            _restart(restart_policy(converted.model), converted, key="deploy.restart_policy")
        elif key not in ("resources", "replicas"):
            converted.dropped(f"deploy.{key}", "it only matters to a swarm")
    if limits.cpus is not None:
        _cpus(limits.cpus, converted)
    for name, limit in (("memory", limits.memory), ("processes", limits.pids)):
        if limit is not None:
            converted.add("resources", **{name: limit})


def restart_policy(service: Service) -> str | None:
    """When the service's program is started again; None: never. As Compose, `deploy` wins."""
    policy = service.deploy.restart_policy
    if policy is None:
        return None if service.restart == "no" else service.restart
    if policy.condition == "any":
        return "always"
    times = f":{policy.max_attempts}" if policy.max_attempts else ""
    return None if policy.condition == "none" else f"on-failure{times}"


def _restart(value: str | None, converted: Converted, *, key: str = "restart") -> None:
    if value and value != "no":
        why = "a program that ends is started again, at most ten times, until it is ready; not then"
        converted.changed(key, why)


def _reported(kind: Kind, key: str, detail: str, *, usual: object = None) -> Convert:
    def convert(value: object, converted: Converted) -> None:
        if value and value != usual:
            fact = Difference(kind=kind, where=converted.where, key=key, detail=detail)
            converted.differences.append(fact)

    return convert


def _extra_hosts(pairs: list[tuple[str, str]], converted: Converted) -> None:
    for name, address in pairs:
        if address == GATEWAY:
            why = f"{name} has no address: a cell does not reach the host"
            converted.dropped("extra_hosts", why)
        else:
            converted.hosts.append((name, address))


def _depends_on(services: dict[str, Dependency], converted: Converted) -> None:
    if any(needed.restart for needed in services.values()):
        converted.dropped("depends_on.restart", "no service is started again with another")


_ULIMITS: Final[Mapping[str, str]] = {
    "nofile": f"a program may open {_SOFT_FILES:,} files, and raise that to {_HARD_FILES:,}",
    "nproc": "the cell's number of processes counts: `pids_limit`, or the policy's `processes`",
    "core": "no program writes a core dump",
}


def _ulimits(limits: dict[str, str], converted: Converted) -> None:
    for name, soft in limits.items():
        if (name, soft) != ("core", "0"):
            usual = "a program has the limit that the cell's kernel begins with"
            converted.dropped(f"ulimits.{name}", _ULIMITS.get(name, usual))


def _platform(value: str, converted: Converted) -> None:
    # An image of another architecture is refused when it is imported
    system, _, architecture = value.partition("/")
    if system != "linux":
        raise refusal(converted.where, "platform", "a cell runs Linux")
    usual = "the image is one of this machine's architecture"
    if architecture.partition("/")[0] in ("", *_ARCHITECTURES.get(platform.machine(), ())):
        converted.dropped("platform", usual)
    else:
        converted.changed("platform", f"{usual}, {platform.machine()}")


# ---- rights


def _security_opt(options: list[str], converted: Converted) -> None:
    for option in options:
        name, _, rest = option.replace("=", ":", 1).partition(":")
        if name == "no-new-privileges" and rest in ("", "true"):
            converted.add("rights", setuid_programs="off")
        elif (name, rest) == ("seccomp", "unconfined"):
            where = f"in tier {_CALLING}, not in a container"
            why = f"the calls by which debuggers work ({_CALLS}) are granted {where}"
            converted.granted("security_opt", why, seccomp="unconfined")
        elif name in ("label", "apparmor", "seccomp"):
            converted.dropped("security_opt", f"{option}: a cell's programs have its own filter")
        else:
            why = f"{option}: it would weaken the isolation of the cell"
            raise refusal(converted.where, "security_opt", why)


def _cap_add(listed: list[str], converted: Converted) -> None:
    names = {name.upper().removeprefix("CAP_") for name in listed}
    if "ALL" in names:
        _privileged(True, converted, key="cap_add")  # noqa: FBT003 - as the key's own value
        return
    more = sorted(names - USUAL_CAPABILITIES)
    refused = Refusals()
    for name in more:
        if name not in _GRANTED:
            granted = ", ".join(sorted(_GRANTED))
            reason = NEVER_GRANTED.get(name, f"what can be granted: {granted}")
            why = f"{name}: no tier grants this capability; {reason}"
            refused.add(converted.where, "cap_add", why)
    refused.raise_all()
    if "MKNOD" in names:
        why = "MKNOD: a cell has the usual six devices, and makes no others"
        converted.dropped("cap_add", why)
    for name in more:
        converted.granted("cap_add", f"{name}: granted in tier {_CAPABLE}", capabilities=more)


def _privileged(value: object, converted: Converted, *, key: str = "privileged") -> None:
    if value:
        why = (
            f"all rights on Belljar's list (CAP_{', CAP_'.join(sorted(_GRANTED))}; {_CALLS}) are "
            f"granted in tier {_CALLING} (capabilities: {_CAPABLE}), not in a container; devices, "
            "mounts, namespaces and modules stay closed"
        )
        converted.granted(key, why, privileged=True)


# ---- the table


def _keys(outcome: Outcome, by_reason: Mapping[str, str]) -> dict[str, Key]:
    return {key: Key(outcome, why) for why, keys in by_reason.items() for key in keys.split()}


_ISOLATION: Final = "the policy decides how a cell is isolated"
_SHARED: Final = "it would share with another container"
_CONVERTED: Final[Mapping[str, Convert]] = {
    "image": _image,
    "build": _build,
    "environment": _environment,
    "working_dir": _word("workdir"),
    "user": _word("user"),
    "cpus": _cpus,
    "cpu_count": _cpus,
    "security_opt": _security_opt,
    "cap_add": _cap_add,
    "privileged": _privileged,
    "mem_limit": _resource("memory"),
    "pids_limit": _resource("processes"),
    "restart": _restart,
    "platform": _platform,
    "extra_hosts": _extra_hosts,
    "depends_on": _depends_on,
    "ulimits": _ulimits,
}
# Their values count for nothing else
_REPORTED: Final[Mapping[Kind, Mapping[str, str]]] = {
    Kind.CHANGED: {
        "cap_drop": "it is not narrowed: root keeps a container's usual capabilities, over its "
        "cell alone",
        "hostname": "others reach the cell by it; inside, a cell's host name is drawn anew",
        "read_only": "the cell's root file system can be written, and ends with the cell",
        "tmpfs": f"it {TMPFS}",
    },
    Kind.DROPPED: {
        "ports": "no port is published on this host; the range's cells reach all of them",
        "shm_size": "shared memory may take at least half of a cell's memory",
    },
}
KEYS: Final[Mapping[str, Key]] = {
    **{key: Key(Outcome.APPLIED, convert=convert) for key, convert in _CONVERTED.items()},
    **{
        key: Key(Outcome.APPLIED, convert=_reported(kind, key, detail))
        for kind, details in _REPORTED.items()
        for key, detail in details.items()
    },
    **_keys(
        Outcome.APPLIED,
        {
            "": "command entrypoint cpu_quota cpu_period extends healthcheck networks "
            "volumes links container_name profiles env_file secrets configs",
        },
    ),
    "deploy": Key(
        Outcome.APPLIED,
        "limits of processors, memory and pids are kept; replicas, GPUs and devices are not",
        _deploy,
    ),
    "runtime": Key(Outcome.APPLIED, FOR_HOST, _reported(Kind.DROPPED, "runtime", _ISOLATION)),
    **_keys(
        Outcome.LIMITED,
        {
            "": "init expose",
            "a range has one network and nothing beyond it; only `none` is kept": "network_mode",
            FOR_HOST: "use_api_socket cgroup devices",
            "each service is one cell": "scale",
            _SHARED: "ipc",
        },
    ),
    **_keys(
        Outcome.DROPPED,
        {
            "nothing in a cell depends on it": "annotations labels label_file logging attach "
            "develop pull_policy pull_refresh_after",
            "a cell's program has no interactive input": "stdin_open tty",
            "a cell is destroyed, not stopped": "stop_signal stop_grace_period pre_stop",
            "`nproc` says as many processors as `cpus` or the policy gives the cell": "cpuset",
            "it divides a host between containers; a cell has its own limits": "mem_reservation "
            "memswap_limit mem_swappiness cpu_shares cpu_percent blkio_config cpu_rt_period "
            "cpu_rt_runtime oom_score_adj oom_kill_disable cgroup_parent",
            "the policy decides how much a cell may write": "storage_opt",
            "the users of a cell are its own, and none of this host's": "userns_mode",
            _ISOLATION: "isolation",
            "each range answers its own names, and has no others": "dns dns_opt dns_search "
            "domainname",
            "hardware addresses are drawn anew for each range": "mac_address",
        },
    ),
    **_keys(
        Outcome.REFUSED,
        {
            FOR_HOST: "device_cgroup_rules gpus pid uts credential_spec",
            "the settings of a cell's kernel are its own": "sysctls",
            _SHARED: "volumes_from external_links",
            "put the groups into the image": "group_add",
            "put it into the service's command": "post_start",
            "a cell uses nothing that is provided elsewhere": "provider models",
        },
    ),
}
"""Every key that Compose knows of a service."""
