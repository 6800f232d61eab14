"""SPECIFICATION.md: every promise names the tests that hold it, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[`(?P<name>[a-z0-9_]+)`\]\((?P<file>tests/[a-z0-9_/]+\.py)\)")
PROMISE = re.compile(r"^\*\*(?P<number>\d+\.\d+)\*\* ", re.MULTILINE)


def promises() -> dict[str, str]:
    """Number → text of each promise."""
    text = (ROOT / "SPECIFICATION.md").read_text()
    parts = PROMISE.split(text)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_there_are_promises_and_their_numbers_are_unique() -> None:
    """The specification is not empty and no number is used twice."""
    numbers = PROMISE.findall((ROOT / "SPECIFICATION.md").read_text())
    assert len(numbers) > 20
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("number", promises())
def test_each_promise_is_held_by_tests_that_exist(number: str) -> None:
    """Each promise links to at least one test function, and each link leads to one."""
    links = list(LINK.finditer(promises()[number]))
    assert links, f"promise {number} names no test"
    for link in links:
        assert link["name"] in _test_names(ROOT / link["file"]), (
            f"{number}: {link['file']} has no {link['name']}"
        )


def _test_names(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {
        n.name
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name.startswith("test_")
    }
