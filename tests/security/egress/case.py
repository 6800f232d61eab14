"""What an egress case is: data, read from `cases.toml`."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.security.egress import evidence
from tests.security.egress.evidence import Both, Either, Evidence


@dataclass(frozen=True)
class Case:
    """One way out that is tried from inside.

    Args: name: its own; letters, digits and `-`. tries: what is tried, in a few words. step: the
    prober's word and its arguments. In braces stand addresses and names of the run; `{port}` and
    `{token}` are this case's own. expects: what must come of it, in a few words. evidence: where
    the host must see it. where: the range and cell that it is tried in. alone: it changes what
    other steps of the cell need.
    """

    name: str
    tries: str
    step: tuple[str, ...]
    expects: str
    evidence: Evidence
    where: str = "deny"
    alone: bool = False


@dataclass(frozen=True)
class Group:
    """Cases of one kind, and what the site's page says of them."""

    title: str
    prose: str
    cases: tuple[Case, ...]


def _read_evidence(node: ast.expr) -> Any:  # noqa: ANN401 - evidence, or a text of it
    """The evidence that words such as `Both(Http("/x"), Reached("{shop}", "80"))` name."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return ast.literal_eval(node)
    kind = getattr(evidence, node.func.id)
    words = [_read_evidence(word) for word in node.args]
    if kind in (Both, Either):
        return kind(tuple(words))
    named = {str(word.arg): _read_evidence(word.value) for word in node.keywords}
    return kind(*words, **named)


def _read_case(fields: dict[str, Any]) -> Case:
    words = ast.parse(fields.pop("evidence"), mode="eval").body
    return Case(step=tuple(fields.pop("step")), evidence=_read_evidence(words), **fields)


GROUPS: Final = tuple(
    Group(group["title"], group["prose"], tuple(_read_case(case) for case in group["cases"]))
    for group in tomllib.loads(Path(__file__).with_name("cases.toml").read_text())["group"]
)
