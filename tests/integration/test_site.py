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
