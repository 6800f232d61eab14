"""Whether a cell can replace a task's sandbox, and what it converts. Pure.

Refuses a sandbox that promises what a cell can't keep: the evaluation would measure something else.
`compose` says what is converted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from belljar.compose.data import builds_of
from belljar.compose.document import files_named_by, services_of
from belljar.compose.interpolate import interpolate, literal, references
from belljar.compose.translate import Composed, read_compose
from belljar.compose.values import CannotKeepError
from belljar.dataclass import dataclass, field
from belljar.differences import Difference, DifferenceKind
from belljar.errors import PolicyError
from belljar.policy.guarding import OWN_CELL
from belljar.policy.load import wrong_fields
from belljar.policy.merge import NO_NETWORK, TASK
from belljar.policy.network import Network
from belljar.policy.sections import Rights
from belljar.policy.stand_ins import ServiceProgram
from belljar.units import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Honoured:
    """Fields for `BelljarConfig`, and what differs from the task."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()


class TaskRefused(PolicyError):  # noqa: N818 - its name in `--json`
    """No cell can replace a task's sandbox; `differences` has each refused item and the rest
    read.
    """

    code = "task_refused"

    def __init__(
        self, what: str, *, where: str, hint: str, differences: tuple[Difference, ...] = ()
    ) -> None:
        super().__init__(what, where=printable(where), hint=hint)
        itself = Difference(kind=DifferenceKind.REFUSED, where=TASK, detail=what, hint=hint)
        self.differences = differences or (itself,)


_OWN_POLICY: Final = (
    "write a policy with the image that the task needs, and run it with"
    " `inspect eval --sandbox belljar:FILE`"
)


def judge(kind: str, *, has_config: bool, where: str) -> Honoured:
    """Decide about a sandbox without a compose file. Raises `TaskRefused`."""
    if kind == "local":
        detail = "the task asks to run on this host: using a cell with the policy's image"
        fact = Difference(kind=DifferenceKind.CHANGED, where=TASK, key="sandbox", detail=detail)
        return Honoured(differences=(fact,))
    if kind == "docker" or not has_config:
        return Honoured(changes={"is_generic": True})
    what = f"the configuration of its sandbox {printable(kind)} can't be converted to a cell"
    raise TaskRefused(what, where=where, hint=_OWN_POLICY)


def judge_compose(compose: Mapping[str, Any], *, where: str = "") -> Honoured:
    """Decide about a compose file; metadata comes later. Raises `TaskRefused`."""
    try:
        services_of(compose)
        if references(compose):
            # Inspect logs the configuration: only values that JSON has.
            return Honoured(changes={"compose": json.loads(json.dumps(compose, default=str))})
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(error, where=where) from error
    return judge_for_sample(compose, {}, where=where)


def judge_for_sample(
    compose: Mapping[str, Any],
    variables: Mapping[str, str],
    *,
    blanks: bool = False,
    where: str = "",
) -> Honoured:
    """Decide with a sample's metadata; `blanks`: as `interpolate`. Raises `TaskRefused`."""
    seen: tuple[Difference, ...] = ()
    try:
        settled = interpolate(compose, variables, blanks=blanks)
        seen = settled.differences
        found = read_compose(settled.document, files_named_by(compose))
        builds = builds_of({**compose, **settled.document})
        changes = {**_changes(found), "builds": tuple(builds)}
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(error, seen, where=where) from error
    return Honoured(changes=changes, differences=(*settled.differences, *found.differences))


def shaping_variables(compose: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """The metadata that decides images and cells."""
    try:
        names = interpolate(compose, variables, blanks=True).shaping
    except (TypeError, ValueError, RecursionError):  # refused later, with its reason
        names = references(compose)
    return {name: variables[name] for name in sorted(names) if name in variables}


def _refused(error: Exception, others: Iterable[Difference] = (), *, where: str) -> TaskRefused:
    what = printable(str(error), max_chars=1000)
    if not isinstance(error, CannotKeepError):
        return TaskRefused(what, where=where, hint=_OWN_POLICY)
    error.add(others)
    refused = (fact for fact in error.differences if fact.kind is DifferenceKind.REFUSED)
    keys = ", ".join(dict.fromkeys(f"`{fact.key}`" for fact in refused if fact.key))
    without = f"remove {keys} from the compose file if the task works without, or " if keys else ""
    hint = error.hint or f"{without}{_OWN_POLICY}"
    return TaskRefused(what, where=where, hint=hint, differences=error.differences)


def _changes(found: Composed) -> dict[str, Any]:
    # A `$` that is left is the file's own text, and no reference for a policy's `env`.
    changes = {**found.changes, "rights": _rights(found.changes)}
    if "env" in changes:
        changes["env"] = tuple((name, literal(value)) for name, value in changes["env"])
    if resources := changes.pop("resources", None):
        changes["resources"] = tuple(sorted(resources.items()))
    if found.network is not None:
        stand_ins: dict[str, dict[str, Any]] = {}
        for name, words in found.network["stand_ins"].items():
            stand_ins[name] = {**words, "rights": _rights(words)}
            if env := words.get("env"):
                stand_ins[name]["env"] = {key: literal(value) for key, value in env.items()}
        changes["network"] = _section(Network, {**found.network, "stand_ins": stand_ins})
    elif found.is_apart:
        changes["network"] = NO_NETWORK
    if found.data is not None:
        changes["data"] = found.data
    changes["program"] = _section(ServiceProgram, found.program)
    return changes | ({"service": found.service} if found.service != OWN_CELL else {})


_M = TypeVar("_M", bound=BaseModel)


def _section(model: type[_M], words: Mapping[str, Any]) -> _M:
    try:
        return model.model_validate(words, strict=False)
    except ValidationError as error:
        raise CannotKeepError(f"a cell can't be so: {wrong_fields(error)}") from None


def _rights(words: Mapping[str, Any]) -> Rights:
    # As in a container: set-user-ID programs work unless new privileges are refused.
    return Rights.model_validate({"setuid_programs": "auto", **words.get("rights", {})})
