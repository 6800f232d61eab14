"""Every compose file of inspect_evals, where it is installed: what a cell keeps of it, and what
not.

`docs/inspect-evals.md` lists the refused files and the keys that are not kept; here both lists are
counted.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.integration.real_images import package

from belljar.compose.document import read_document
from belljar.compose.interpolate import references
from belljar.differences import Kind
from belljar.harness.compat import Honoured, judge_for_sample
from belljar.harness.compat import TaskRefused as Refused

DOCS = Path(__file__).parents[2] / "docs/inspect-evals.md"
_REFUSED = re.compile(
    r"^\| `(?P<file>\S+\.ya?ml)` \| (?P<where>[^|]*) \| `(?P<key>[^`|]*)` \|", re.MULTILINE
)
_NOT_KEPT = re.compile(
    r"^\| `(?P<key>[^`|]+)` \| (?P<kind>dropped|changed|granted) \|", re.MULTILINE
)


@cache
def judgements() -> dict[str, Honoured | Refused]:
    """What becomes of each file; a sample's metadata names some image wherever a file asks for
    it."""
    root = package()
    files = sorted(path for path in root.rglob("*compose*.y*ml") if path.is_file())
    found: dict[str, Honoured | Refused] = {}
    for path in files:
        document = read_document(path)
        metadata = dict.fromkeys(references(document), "registry.example/of-a-sample:1")
        file = str(path.relative_to(root))
        try:
            found[file] = judge_for_sample(document, metadata)
        except Refused as refused:
            found[file] = refused
    return found


def test_nearly_all_compose_files_are_accepted() -> None:
    """Of the 145 files at least 130 are accepted."""
    found = judgements()
    assert len(found) == 145
    accepted = [file for file, judgement in found.items() if not isinstance(judgement, Refused)]
    assert len(accepted) >= 130


def test_the_refused_files_are_those_the_docs_list() -> None:
    """Each refused file is listed with the service and the key, and no other is."""
    listed = {match.group("file", "where", "key") for match in _REFUSED.finditer(DOCS.read_text())}
    refused = {
        (file, fact.where, fact.key)
        for file, judgement in judgements().items()
        if isinstance(judgement, Refused)
        for fact in judgement.differences
        if fact.kind is Kind.REFUSED
    }
    assert refused == listed
    files = {file for file, judgement in judgements().items() if isinstance(judgement, Refused)}
    assert files == {file for file, _, _ in refused}


def test_what_is_not_kept_is_reported_and_listed() -> None:
    """Each key that an accepted file has and a cell does not keep as it is has a sentence, and is
    in the docs' list."""
    listed = {match.group("kind", "key") for match in _NOT_KEPT.finditer(DOCS.read_text())}
    facts = [
        fact
        for judgement in judgements().values()
        if not isinstance(judgement, Refused)
        for fact in judgement.differences
        if fact.kind is not Kind.KEPT
    ]
    assert all(fact.detail for fact in facts)
    assert {(fact.kind.value, fact.key) for fact in facts} <= listed
