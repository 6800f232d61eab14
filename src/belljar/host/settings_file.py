"""One settings file, read strictly. Imported only where there is one: it takes pydantic and a YAML
reader."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, ValidationError

from belljar.errors import PolicyError
from belljar.host.settings import MAX_BYTES, Upstreams
from belljar.policy import Risk
from belljar.policy import fields as kinds
from belljar.policy.sections import Strict
from belljar.policy.yaml_tree import Problem, Reading, Tree, closest_mark, field_name, read_tree
from belljar.units import printable

_READING: Final = Reading(what="a settings file", max_bytes=MAX_BYTES)
_HINT: Final = "its fields are `least_risk` and `upstreams`; docs/policy.md has both"


class SettingsFile(Strict):
    """What one file says; None where it says nothing."""

    least_risk: Annotated[Risk, kinds.Choice(words=Risk)] | None = Field(default=None)
    upstreams: Annotated[Upstreams, kinds.Choice(words=Upstreams)] | None = Field(default=None)


def parse_settings(text: bytes, *, source: str) -> SettingsFile:
    """What a settings file says. Raises `PolicyError` with file, line and column."""
    tree = read_tree(text, _READING)
    if tree.problems:
        raise _refused(tree.problems[0], source)
    if tree.value is None:  # only comments
        return SettingsFile()
    if not isinstance(tree.value, dict):
        what = f"settings are a mapping of fields, but this is {kinds.kind_of(tree.value)}"
        raise _refused(Problem(mark=closest_mark(tree, ()), field="", message=what), source)
    try:
        return SettingsFile.model_validate(tree.value)
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
