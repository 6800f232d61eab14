"""Every compose file and Dockerfile of inspect_evals 0.28: what a cell keeps of it, and what not."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from tests.real_packages import inspect_evals

from belljar.compose.document import read_document
from belljar.compose.interpolate import references
from belljar.differences import DifferenceKind
from belljar.harness.config import BelljarConfig, of_sample
from belljar.harness.config import TaskRefused as Refused
from belljar.image.dockerfile import DockerfileError, base_images, make_buildable, parse

DOCS = Path(__file__).parents[2] / "docs/inspect-evals.md"
_REFUSED = re.compile(
    r"^\| `(?P<file>\S+\.ya?ml)` \| (?P<where>[^|]*) \| `(?P<key>[^`|]*)` \|", re.MULTILINE
)
_NOT_KEPT = re.compile(
    r"^\| `(?P<key>[^`|]+)` \| (?P<kind>dropped|changed|granted) \|", re.MULTILINE
)


@cache
def judgements() -> dict[str, BelljarConfig | Refused]:
    root = inspect_evals()
    files = sorted(path for path in root.rglob("*compose*.y*ml") if path.is_file())
    found: dict[str, BelljarConfig | Refused] = {}
    for path in files:
        document = read_document(path)
        metadata = dict.fromkeys(references(document), "registry.example/of-a-sample:1")
        file = str(path.relative_to(root))
        try:
            found[file] = of_sample(document, metadata, BelljarConfig())
        except Refused as refused:
            found[file] = refused
    return found


@pytest.mark.promise("1.5")
def test_nearly_all_compose_files_are_accepted() -> None:
    """Of the 144 files 138 are: 136 as they are, and two that are parts of others, which are."""
    found = judgements()
    assert len(found) == 144
    refused = {file for file, judgement in found.items() if isinstance(judgement, Refused)}
    assert len(refused) == 8
    including = {
        part: {
            file
            for file in found
            if f"path: ../../servers/{part}/compose.yaml" in (inspect_evals() / file).read_text()
        }
        for part in ("owncloud", "rocketchat")
    }
    assert all(files and not files & refused for files in including.values())
    parts = {f"theagentcompany/servers/{part}/compose.yaml" for part in including}
    assert parts < refused


@pytest.mark.promise("1.5")
def test_the_refused_files_are_those_the_docs_list() -> None:
    """Each refused file is listed with the service and the key, and no other is."""
    listed = {match.group("file", "where", "key") for match in _REFUSED.finditer(DOCS.read_text())}
    refused = {
        (file, fact.where, fact.key)
        for file, judgement in judgements().items()
        if isinstance(judgement, Refused)
        for fact in judgement.differences
        if fact.kind is DifferenceKind.REFUSED
    }
    assert refused == listed
    files = {file for file, judgement in judgements().items() if isinstance(judgement, Refused)}
    assert files == {file for file, _, _ in refused}


@pytest.mark.promise("1.5")
def test_what_is_not_kept_is_reported_and_listed() -> None:
    """Each key that a cell does not keep as it is has a sentence, and is in the docs' list."""
    listed = {match.group("kind", "key") for match in _NOT_KEPT.finditer(DOCS.read_text())}
    facts = [
        fact
        for judgement in judgements().values()
        if not isinstance(judgement, Refused)
        for fact in judgement.differences
    ]
    assert all(fact.detail for fact in facts)
    assert {(fact.kind.value, fact.key) for fact in facts} <= listed


def test_all_dockerfiles_are_read_and_nearly_all_are_translated() -> None:
    """Of the 143 files each is translated for buildah but the template that is no Dockerfile."""
    root = inspect_evals()
    files = sorted(
        path
        for path in root.rglob("*")
        if "dockerfile" in path.name.lower() and path.suffix not in {".py", ".pyc", ".md"}
    )
    assert len(files) == 143
    refused, translated = {}, list[str]()
    for path in files:
        try:
            translated.append(make_buildable(base_images(path.read_text(), {}), {}, {}).text)
        except DockerfileError as error:
            refused[str(path.relative_to(root))] = str(error)
    again = parse("".join(translated))  # in one process: each takes a moment to start
    assert len(again) == sum(text.count("\n") for text in translated)
    assert not [each for each in again if each.heredocs]
    assert set(refused) == {"agent_bench/Dockerfile.template.j2"}
