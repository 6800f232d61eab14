"""What the operator decides over a task's policy. `under_policy` is pure.

`--policy` states the isolation (`risk`, `tier`, `resources`, `network`, `host_tools`); a task that
brings an image brings its own content. `$BELLJAR_POLICY` and the host's settings are a floor: a
task's own policy is never looser.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from belljar.differences import Difference, Kind
from belljar.errors import PolicyError
from belljar.policy.floor import held_cells, is_closed, larger_record, smaller_resources
from belljar.policy.limits import Resources, demanded_tier
from belljar.policy.load import with_changes
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.model import Policy
from belljar.policy.network import Network
from belljar.policy.sections import Rights, common_rights, written_resources
from belljar.policy.stand_ins import TargetStandIn
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from belljar.host.settings import Settings
    from belljar.policy import LoadedPolicy


POLICY_VARIABLE: Final = "BELLJAR_POLICY"
ALLOW_VARIABLE: Final = "BELLJAR_ALLOW_UPSTREAMS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The operator's settings, outside of any task.

    `policy`: `$BELLJAR_POLICY` at process start. `allows_upstreams`: `--allow-upstreams` or its
    variable. `run_policy`, `override`, `tier`: `--policy`, `--override`, `--tier`.
    """

    settings: Settings
    policy: str = ""
    allows_upstreams: bool = False
    run_policy: str = ""
    override: bool = False
    tier: str = ""


class OperatorOptions(TypedDict, total=False):
    """Options of the command line: arguments of `read_operator`."""

    run_policy: str
    override: bool
    tier: str
    allow_upstreams: bool


def read_operator(
    *, run_policy: str = "", override: bool = False, tier: str = "", allow_upstreams: bool = False
) -> Operator:
    """From the settings files and the start environment, which no `.env` file changes.

    Raises `PolicyError` or `HostError` for invalid settings.
    """
    from belljar.host.settings import environment_at_start, read_settings

    environ = environment_at_start()
    return Operator(
        settings=read_settings(),
        policy=_absolute(environ.get(POLICY_VARIABLE, "")),
        allows_upstreams=allow_upstreams or environ.get(ALLOW_VARIABLE) == "1",
        run_policy=run_policy,
        override=override,
        tier=tier,
    )


def _absolute(policy: str) -> str:
    # Inspect changes into a task's directory, where a relative file would be the task's.
    from belljar.policy.loaded import PRESETS

    if not policy or policy in PRESETS or policy.startswith(("/", "~")):
        return policy
    raise PolicyError(
        f"{printable(policy)} is neither a preset nor an absolute path",
        where=f"${POLICY_VARIABLE}",
        hint=f"{POLICY_VARIABLE}={printable(str(Path.cwd() / policy))}, if that is the file",
    )


def permitted(loaded: LoadedPolicy, operator: Operator, *, is_named: bool) -> LoadedPolicy:
    """The policy within this host's settings; `is_named`: by the operator.

    Raises `PolicyError` for upstreams that are not allowed.
    """
    from belljar.host.settings import Upstreams, within_settings
    from belljar.plan.explain_network import announcements

    made = within_settings(loaded, operator.settings)
    upstreams = made.policy.network.upstreams if made.policy.network is not None else ()
    is_allowed = operator.allows_upstreams or operator.settings.upstreams is Upstreams.ALLOW
    if upstreams and not is_named and not is_allowed:
        raise PolicyError(
            f"the task's own policy reaches real hosts: {', '.join(announcements(made))}",
            where=printable(loaded.source),
            hint=f"allow it with `belljar run --allow-upstreams` or {ALLOW_VARIABLE}=1 for "
            f"`inspect eval`; or use"
            " your own policy: `belljar run --policy FILE` or `inspect eval --sandbox "
            "belljar:FILE`",
        )
    return made


NO_NETWORK: Final = "none"
"""A configuration without any network, whatever its policy has."""
_EMPTY: Final[Mapping[str, Any]] = {
    "image": "default",
    "user": None,
    "workdir": None,
    "env": {},
    "files": (),
}
"""A policy's content fields, when unset."""
_ISOLATION_FIELDS: Final = ("risk", "tier", "resources", "host_tools")
_FEWER_RIGHTS: Final = "the policy grants fewer rights inside the cell than the task asks for"
TASK: Final = "task"
"""The whole of a task's sandbox."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    changes: Mapping[str, Any]
    base_of: LoadedPolicy
    differences: tuple[Difference, ...] = ()


def under_policy(
    run_policy: LoadedPolicy,
    own: LoadedPolicy | None,
    asked: Mapping[str, Any],
    *,
    override: bool = False,
) -> tuple[LoadedPolicy, tuple[Difference, ...]]:
    """The policy of a cell within the operator's isolation, and its differences from the task.

    `own`: the task's own policy. `asked`: its compose file, in a policy's terms. `override`: the
    operator's content replaces the task's.

    Raises `PolicyError`, also when files of two directories are needed.
    """
    content = _content(run_policy, own, asked, override=override)
    network = _network(run_policy, own, asked, override=override)
    rights, fewer = _rights(run_policy, own, asked)
    changes = {**_EMPTY, **content.changes, **network.changes, "rights": rights}
    made = with_changes(run_policy, changes)
    limits = list[Difference]()
    if wanted := asked.get("resources"):
        most = run_policy.policy.resources
        larger = with_changes(run_policy, {"resources": {**written_resources(most), **wanted}})
        held = smaller_resources(larger.policy.resources, most)
        limits += _limited(larger.policy.resources, held, where=TASK, written=wanted)
        made = replace(made, policy=made.policy.model_copy(update={"resources": held}))
    made = replace(made, base=_base(made.policy, content.base_of, network.base_of))
    return made, (
        *(_replaced_isolation(run_policy.policy, own.policy) if own is not None else ()),
        *content.differences,
        *limits,
        *fewer,
        *network.differences,
    )


def _content(
    run_policy: LoadedPolicy, own: LoadedPolicy | None, asked: Mapping[str, Any], *, override: bool
) -> _Chosen:
    operator = _written(run_policy.policy)
    task = _written(own.policy) if own is not None else {}
    task |= {name: asked[name] for name in ("image", "user", "workdir") if name in asked}
    if "env" in asked:
        task["env"] = {**task.get("env", {}), **asked["env"]}
    if override:
        first, last = task, operator
        differences = tuple(_overridden(task, operator))
    elif "image" in task:
        first, last = {}, task
        differences = tuple(_unused(task, operator))
    else:
        first, last = operator, task
        differences = ()
    changes = {**first, **last}
    if "env" in first or "env" in last:
        changes["env"] = {**first.get("env", {}), **last.get("env", {})}
    is_from_task = own is not None and "files" in task and (last is task or "files" not in last)
    return _Chosen(changes, own if own is not None and is_from_task else run_policy, differences)


def _rights(
    run_policy: LoadedPolicy, own: LoadedPolicy | None, asked: Mapping[str, Any]
) -> tuple[Rights | None, tuple[Difference, ...]]:
    written = asked.get("rights")
    wanted = own.policy.rights if own is not None else None
    wanted = Rights.model_validate(written) if written is not None else wanted
    if wanted is None:
        return run_policy.policy.rights, ()
    kept = common_rights(wanted, run_policy.policy.rights)
    return kept, () if kept == wanted else (_changed("rights", _FEWER_RIGHTS),)


def _written(policy: Policy) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in _EMPTY if name in policy.model_fields_set}


def _overridden(task: Mapping[str, Any], operator: Mapping[str, Any]) -> Iterator[Difference]:
    for name, value in operator.items():
        if name == "env":
            changed = sorted(k for k, v in value.items() if task.get("env", {}).get(k, v) != v)
            if changed:
                yield _by_operator("env", f"the policy's {', '.join(changed)}")
        elif name in task and task[name] != value:
            detail = f"the policy's {_shown(value)} instead of {_shown(task[name])}"
            yield _by_operator(name, detail)
        elif (
            name in ("user", "workdir")
            and "image" in task
            and name not in task
            and value is not None
        ):
            yield _by_operator(
                name, f"the policy's {_shown(value)} instead of what the task's image says"
            )


def _by_operator(key: str, detail: str) -> Difference:
    return Difference(kind=Kind.OVERRIDDEN, where=TASK, key=key, detail=printable(detail))


def _unused(task: Mapping[str, Any], operator: Mapping[str, Any]) -> Iterator[Difference]:
    for name, value in operator.items():
        if value not in (_EMPTY[name], task.get(name)):
            detail = (
                f"the policy's image {_shown(value)} is not used: the task brings "
                f"{_shown(task['image'])}"
                if name == "image"
                else f"the policy's {name} is not used: the task brings an image of its own"
            )
            yield _ignored(name, detail)


def _ignored(key: str, detail: str) -> Difference:
    detail = printable(f"{detail}; `--override` uses the policy's")
    return Difference(kind=Kind.DROPPED, where="policy", key=key, detail=detail)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else "its files" if value else "none"


def _network(
    run_policy: LoadedPolicy, own: LoadedPolicy | None, asked: Mapping[str, Any], *, override: bool
) -> _Chosen:
    operator = run_policy.policy.network
    wanted = asked.get("network")
    task = own.policy.network if own is not None else None
    services = task  # if all of it is cells of its own
    if isinstance(wanted, Mapping):
        services = with_changes(run_policy, {"network": wanted}).policy.network
    if services is not None and not (services.stand_ins and is_closed(services)):
        services = None
    if override and "network" in run_policy.policy.model_fields_set:
        instead = "`network_mode: none`" if operator is not None and wanted == NO_NETWORK else ""
        if services is not None:
            instead = f"the services {', '.join(services.stand_ins)}"
        replaced = _by_operator("network", f"the policy's network instead of {instead}")
        return _Chosen({"network": operator}, run_policy, (replaced,) if instead else ())
    if wanted == NO_NETWORK:
        gone = "the task has `network_mode: none`: the policy's network is taken away"
        return _Chosen(
            {"network": None}, run_policy, (_ignored("network", gone),) if operator else ()
        )
    if services is None:
        is_changed = task is not None and task != operator
        changed = _changed("network", "the policy's network instead of the task's own")
        return _Chosen({"network": operator}, run_policy, (changed,) if is_changed else ())
    held = held_cells(
        services, run_policy.policy, demanded_tier(run_policy.policy.risk, run_policy.policy.tier)
    )
    if operator is not None:
        held = held.model_copy(update={"record": larger_record(services.record, operator.record)})
    names = ", ".join(services.stand_ins)
    unused = f"the task's services ({names}) are its network: the policy's is not there"
    return _Chosen(
        {"network": held},
        own if own is not None and not isinstance(wanted, Mapping) else run_policy,
        (
            *((_ignored("network", unused),) if operator is not None else ()),
            *_smaller_services(services, held, wanted),
        ),
    )


def _smaller_services(services: Network, held: Network, wanted: object) -> Iterator[Difference]:
    words = wanted["stand_ins"] if isinstance(wanted, Mapping) else {}
    for name, item in services.stand_ins.items():
        now = held.stand_ins[name]
        if isinstance(item, TargetStandIn) and isinstance(now, TargetStandIn):
            if item.rights != now.rights:
                where = printable(f"service {name}")
                yield Difference(kind=Kind.CHANGED, where=where, key="rights", detail=_FEWER_RIGHTS)
            written = (
                words[name].get("resources", {}) if words else written_resources(item.resources)
            )
            if "resources" in item.model_fields_set:
                yield from _limited(
                    item.resources, now.resources, where=f"service {name}", written=written
                )


def _limited(
    asked: Resources, held: Resources, *, where: str, written: Mapping[str, Any]
) -> Iterator[Difference]:
    for field in fields(Resources):
        wanted, most = getattr(asked, field.name), getattr(held, field.name)
        key = field.name.removesuffix("_bytes").removesuffix("_s")
        if wanted != most and key in written:
            asked_for, given = _written_limit(field.name, wanted), _written_limit(field.name, most)
            detail = f"{asked_for} asked for, {given} by the policy"
            yield Difference(
                kind=Kind.CHANGED, where=printable(where), key=f"resources.{key}", detail=detail
            )


def _written_limit(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return format_size(int(value))
    return format_duration(value) if name.endswith("_s") else str(value)


def _changed(key: str, detail: str) -> Difference:
    return Difference(kind=Kind.CHANGED, where=TASK, key=key, detail=printable(detail))


def _replaced_isolation(operator: Policy, task: Policy) -> Iterator[Difference]:
    for name in _ISOLATION_FIELDS:
        asks, holds = getattr(task, name), getattr(operator, name)
        if name in task.model_fields_set and asks != holds:
            what = f"{holds}, not {asks}" if name == "risk" else "the policy's own"
            yield _changed(name, f"the policy of --policy holds: {what}")


def _base(policy: Policy, content: LoadedPolicy, network: LoadedPolicy) -> Path | None:
    stand_ins = policy.network.stand_ins.values() if policy.network is not None else ()
    needs_content = bool(policy.files)
    needs_network = any(each.own_path()[0] or getattr(each, "files", ()) for each in stand_ins)
    if needs_content and needs_network and content.base != network.base:
        raise PolicyError(
            "the task and the policy of --policy both have files: a cell takes files from the "
            "directory of one policy",
            where=printable(content.source),
            hint="`--override` with a policy that has `files` uses the policy's",
        )
    return network.base if needs_network else content.base
