"""The documentation as files, and the promises of SPECIFICATION.md: links, anchors, generated pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import docs_pages, promises

from belljar.compose.document import read_document
from belljar.harness.config import BelljarConfig, of_sample

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in docs_pages.site_pages()]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the site and repository hosts make them; and ids."""
    headings = re.findall(r"^#+ (.*)$", docs_pages.FENCE.sub("", text), re.MULTILINE)
    plain = [docs_pages.LINK.sub(lambda match: match[2], heading) for heading in headings]
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}
    return made | set(re.findall(r"\{ #([\w-]+) \}", text))


def text_of(page: Path) -> str:
    """A page of the repository, or one that is generated."""
    generated = docs_pages.GENERATED.get(page.name)
    return generated() if generated and page.parent.name == "docs" else page.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """Each relative link is a file of the repository or a generated page, with the anchor."""
    text = re.sub(r"`[^`\n]*`", "", docs_pages.FENCE.sub("", page.read_text()))
    for _, _, target in docs_pages.LINK.findall(text):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (page.parent / path) if path else page
        exists = file.exists() or (
            file.parent == ROOT / "docs" and file.name in docs_pages.GENERATED
        )
        assert exists, target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(text_of(file)), target


def test_every_page_has_a_place_in_the_site() -> None:
    """The navigation lists each page of docs/ and each generated page once, and nothing else."""
    listed = [file for pages in docs_pages.navigation().values() for _, file in pages]
    elsewhere = {"index.md", "specification.md", "benchmarks.md", "changelog.md"}
    written = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert sorted(listed) == sorted(elsewhere | written | docs_pages.GENERATED.keys())


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_compose_example_is_accepted(page: Path, tmp_path: Path) -> None:
    """Each block titled compose.yaml is a file that Belljar converts."""
    for number, block in enumerate(
        re.findall(r'^```yaml title="compose.yaml"\n(.*?)^```$', page.read_text(), re.M | re.S)
    ):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block)
        of_sample(read_document(file), {}, BelljarConfig())


def test_each_promise_has_tests_and_each_mark_a_promise() -> None:
    """No number is used twice, none is without a test, and no test holds what isn't promised."""
    numbers = [number for number, _ in promises.promises()]
    assert len(set(numbers)) == len(numbers) > 20
    assert promises.tests_by_promise().keys() == set(numbers)
