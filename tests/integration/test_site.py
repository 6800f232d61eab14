"""The docs site: `scripts/docs` builds it strictly, and what it makes needs nothing from
elsewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
ASSET = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?(?:https?:)?//[^>]*>",
    re.IGNORECASE,
)
FETCHED = re.compile(r"(?:@import\s+(?:url\()?|url\()[\"']?(?:https?:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built anew."""
    ran = subprocess.run(
        [ROOT / "scripts" / "docs", "--yes"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return SITE


@pytest.mark.thorough
def test_the_built_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    """No page or style sheet names a script, style, font or picture of another host. The theme
    would fetch what draws diagrams, formulas and galleries, so no page has any."""
    pages, styles = list(site.rglob("*.html")), list(site.rglob("*.css"))
    assert len(pages) > 30
    assert styles
    canonical = re.compile(r'<link[^>]*rel="?(?:canonical|sitemap)[^>]*>')
    assert {
        p.name: found for p in pages if (found := ASSET.findall(canonical.sub("", p.read_text())))
    } == {}
    fetching = re.compile(r'class="?[^">]*(?:mermaid|arithmatex|glightbox|playground)')
    assert [page.name for page in pages if fetching.search(page.read_text())] == []
    assert [style.name for style in styles if FETCHED.search(style.read_text())] == []


def test_the_index_for_language_models_names_every_page(site: Path) -> None:
    """`llms.txt` links each page as Markdown with its purpose, and each link is there."""
    text = (site / "llms.txt").read_text()
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S.*$", text, re.MULTILINE)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(links)
    assert all((site / link).is_file() for link in links)


def test_an_option_can_be_linked(site: Path) -> None:
    """The address of an option, as another page links it, is an element that says the option."""
    target = re.findall(
        r"href=\"?reference-cli\.html#(ledger-show--kind)", (site / "cli.html").read_text()
    )
    assert target
    reference = (site / "reference-cli.html").read_text()
    items = dict(re.findall(r"<a href=\"#[^\"]+\" id=\"([^\"]+)\"><code>([^<]+)", reference))
    assert items[target[0]] == "--kind KIND"
    assert {"run--fleet", "serve--operator", "ledger-show--output"} <= items.keys()


def test_every_picture_is_there(site: Path) -> None:
    """Of each page, the first included."""
    found = [
        (page, source)
        for page in site.rglob("*.html")
        for source in re.findall(r"<img\b[^>]*?\bsrc=\"?([^\" >]+)", page.read_text())
    ]
    assert any(page == site / "index.html" for page, _ in found)
    missing = [
        (page.name, source)
        for page, source in found
        if not ((site / source[1:]) if source.startswith("/") else page.parent / source).is_file()
    ]
    assert missing == []
