"""The promises of SPECIFICATION.md and the tests that hold them: `python -m scripts.promises`.

A test holds a promise by `@pytest.mark.promise("4.2", …)`. Files are read and not imported, so the
table has tests that this machine can't run, too.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_PROMISE: Final = re.compile(r"^\*\*(\d+\.\d+)\*\* (.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


def promises() -> list[tuple[str, str]]:
    """Return number and text of each promise, in the order of the page."""
    return _PROMISE.findall((ROOT / "SPECIFICATION.md").read_text())


def tests_by_promise() -> dict[str, list[str]]:
    """Return the tests that carry each number, as `tests/…/test_x.py::test_y`, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text()
        if "mark.promise(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in _numbers(node):
                    found[number].append(f"{file.relative_to(ROOT)}::{node.name}")
    return found


def page() -> str:
    """Return the table as a page of the documentation."""
    tests = tests_by_promise()
    lines = ["# Promises and their tests", "", "[The promises](SPECIFICATION.md) in full.", ""]
    for number, text in promises():
        lines += [f"## {number}", "", text, "", *(f"- `{test}`" for test in tests[number]), ""]
    return "\n".join(lines)


def _numbers(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [
        argument.value
        for mark in node.decorator_list
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise"
        for argument in mark.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


if __name__ == "__main__":
    print(page())
