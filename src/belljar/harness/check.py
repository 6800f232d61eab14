"""`belljar check`: whether a task, a compose file or a policy runs on this host, and as what.

Reads what is there; starts, builds and fetches nothing. (A task's Python file is loaded, which
runs it, as `belljar run` does.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belljar.compose.document import is_compose_name, read_document
from belljar.compose.interpolate import references
from belljar.errors import BelljarError, HostError, PolicyError
from belljar.harness.config import BelljarConfig, beside_policy, of_compose, settled
from belljar.harness.operator import Operator, OperatorOptions, read_operator
from belljar.harness.preview import (
    Group,
    Preview,
    SampleSandbox,
    differences_of_images,
    grouped,
    missing_images,
    preview,
    with_images,
)
from belljar.policy.files import read_regular
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.host import HostFacts
    from belljar.image.store import MissingImage
    from belljar.plan import ImageFacts, Plan

_IS_POLICY: Final = re.compile(rb"^[\"']?belljar[\"']?\s*:", re.MULTILINE)
_IS_COMPOSE: Final = re.compile(rb"^[\"']?services[\"']?\s*:", re.MULTILINE)
_MAX_LOOK_BYTES: Final = 128 << 10
MISSING_CODE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What becomes of samples with the same outcome.

    Attributes:
        group: the samples; `error` of their preview is the author's to fix.
        missing: images that the store does not have, each with the command that gets it.
        plan: what a cell would be here.
        lacking: what this host can't do.
    """

    group: Group
    missing: tuple[MissingImage, ...] = ()
    plan: Plan | None = None
    error: BelljarError | None = None
    lacking: HostError | None = None

    @property
    def exit_code(self) -> int:
        """0 runs, 3 something is missing on this host, 4 refused."""
        if self.error is not None:
            return self.error.exit_code
        return MISSING_CODE if self.missing or self.lacking is not None else 0

    @property
    def outcome(self) -> str:
        """In one word: `refused`, `missing`, `differs` or `runs`."""
        if self.error is not None:
            return "refused"
        if self.exit_code:
            return "missing"
        return "differs" if self.group.first.differences else "runs"


def exit_code(outlooks: Iterable[Outlook]) -> int:
    """Of all: what its author must fix goes before what this host lacks."""
    return max((each.exit_code for each in outlooks), default=0)


def kind_of(target: str) -> str:
    """`policy`, `compose` or `task`: by the file's name, and by what it says."""
    from belljar.policy.loaded import PRESETS

    if target in PRESETS:
        return "policy"
    path = Path(target)
    if path.suffix not in {".yaml", ".yml"}:
        return "task"
    try:
        text = read_regular(path.parent, path.name, _MAX_LOOK_BYTES)
    except (OSError, ValueError):
        text = b""  # refused with its reason when it is read
    if _IS_POLICY.search(text):
        return "policy"
    return "compose" if is_compose_name(target) or _IS_COMPOSE.search(text) else "policy"


def check_policy(target: str, options: OperatorOptions) -> list[Preview]:
    """A policy file or a preset, as what `--policy` would be for a task that brings nothing."""
    alone: OperatorOptions = {**options, "run_policy": target}
    return _one(BelljarConfig(), read_operator(**alone), target)


def check_compose(target: str, options: OperatorOptions) -> list[Preview]:
    """A compose file, with the policy beside it. Metadata that it needs is only known with a
    sample: what depends on it is judged by a value in its place."""
    path = Path(target).absolute()
    operator = read_operator(**options)
    try:
        config = of_compose(read_document(path), beside_policy(path.parent), where=target)
        return _one(_without_metadata(config), operator, target)
    except PolicyError as error:
        made = SampleSandbox(
            task=target, sample="", metadata={}, config=BelljarConfig(), error=error
        )
        return list(preview([made], operator))


def _one(config: BelljarConfig, operator: Operator, target: str) -> list[Preview]:
    return list(
        preview([SampleSandbox(task=target, sample="", metadata={}, config=config)], operator)
    )


PLACEHOLDER: Final = "sample-metadata"
"""Stands for what a sample's metadata will say, where no sample is known."""


def _without_metadata(config: BelljarConfig) -> BelljarConfig:
    if not config.compose:
        return config
    try:
        return settled(config, {})
    except PolicyError:
        names = references(json.loads(config.compose))
        prefix = len("SAMPLE_METADATA_")
        return settled(config, {name[prefix:]: PLACEHOLDER for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What is asked of this host, when it is needed."""

    home: Path
    facts: Callable[[], HostFacts]
    image: Callable[[str], ImageFacts | None]


def outlooks(previews: Sequence[Preview], host: Host) -> list[Outlook]:
    """Each group with its images and its plan."""
    known = replace(host, facts=cache(host.facts))
    whole = with_images(previews, lambda policy: differences_of_images(policy, host.home))
    return [_outlook(group, known) for group in grouped(whole)]


def _outlook(group: Group, host: Host) -> Outlook:
    from belljar.harness.builds import command_of
    from belljar.network.stand_ins.author import check_stand_ins
    from belljar.plan import make_plan

    loaded, error = group.first.policy, group.first.error
    if loaded is None or error is not None:
        return Outlook(group=group, error=error or PolicyError("nothing is known of it"))
    builds = {each["image"]: each for each in json.loads(group.first.builds or "[]")}
    missing = tuple(
        replace(each, command=command_of(builds[each.image])) if each.image in builds else each
        for each in missing_images([loaded], host.home)
        if PLACEHOLDER not in each.image
    )
    try:
        check_stand_ins(loaded)
        image = host.image(loaded.policy.image)
        plan = make_plan(loaded.policy, host.facts(), image, base=loaded.base)
    except HostError as lacking:
        return Outlook(group=group, missing=missing, lacking=lacking)
    except BelljarError as refused:
        return Outlook(group=group, missing=missing, error=refused)
    return Outlook(group=group, missing=missing, plan=plan)


def all_missing(found: Iterable[Outlook]) -> list[MissingImage]:
    """Each image once, in the order of the groups."""
    return list({each.image: each for outlook in found for each in outlook.missing}.values())


def as_json(target: str, kind: str, found: Sequence[Outlook]) -> dict[str, Any]:
    """For `--json`; documented in docs/check.md."""
    return {
        "target": target,
        "kind": kind,
        "exit_code": exit_code(found),
        "groups": [_group_json(each) for each in found],
        "missing_images": [
            {"image": each.image, "what": each.why.what, "command": each.command}
            for each in all_missing(found)
        ],
    }


def _group_json(each: Outlook) -> dict[str, Any]:
    first, plan = each.group.first, each.plan
    absent = {missing.image for missing in each.missing}
    images = first.policy.policy.images if first.policy is not None else ()
    return {
        "task": first.task if each.group.samples != ("",) else "",
        "samples": [name for name in each.group.samples if name],
        "outcome": each.outcome,
        "kept": [fact.data() for fact in first.kept],
        "differences": [fact.data() for fact in first.differences],
        "error": _error_json(each.error),
        "images": [{"image": name, "present": name not in absent} for name in images],
        "plan": None if plan is None else _plan_json(plan),
        "lacking": _error_json(each.lacking),
    }


def _error_json(error: BelljarError | None) -> dict[str, str] | None:
    if error is None:
        return None
    return {
        "what": printable(error.what, max_chars=2000),
        "where": printable(error.where),
        "hint": printable(error.hint),
    }


def _plan_json(plan: Plan) -> dict[str, Any]:
    limits = plan.limits
    return {
        "risk": str(plan.risk),
        "tier": str(plan.tier),
        "emulated": plan.emulated,
        "cpus": limits.cpus,
        "memory_bytes": limits.memory_bytes,
        "disk_bytes": limits.disk_bytes,
        "processes": limits.processes,
        "lifetime_s": limits.lifetime_s,
        "user": plan.user,
        "workdir": plan.workdir,
        "services": _services(plan),
        "upstreams": [each.host for each in plan.policy.network.upstreams]
        if plan.policy.network is not None
        else [],
        "warnings": list(plan.warnings),
    }


def _services(plan: Plan) -> list[str]:
    network = plan.policy.network
    return list(network.stand_ins) if network is not None else []
