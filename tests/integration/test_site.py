"""The docs site: `scripts/docs` builds it strictly, and what it makes needs nothing from
elsewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"


@pytest.fixture(scope="module")
def site() -> Path:
    ran = subprocess.run(
        [ROOT / "scripts" / "docs", "--yes"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return SITE


def test_the_index_for_language_models_names_every_page(site: Path) -> None:
    """`llms.txt` links each page as Markdown with its purpose, and each link is there."""
    text = (site / "llms.txt").read_text()
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S.*$", text, re.MULTILINE)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(links)
    assert all((site / link).is_file() for link in links)
