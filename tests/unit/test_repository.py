"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 500
MAX_TEST_FILE_LINES = 600
MAX_FUNCTION_LINES = 40
LONG_FUNCTIONS_SHARE = 0.05


def tracked(*patterns: str) -> list[Path]:
    """Files git knows, or every file where there is no git (a source archive)."""
    found = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode == 0:
        return [
            ROOT / name for name in found.stdout.split("\n") if name and (ROOT / name).is_file()
        ]
    return [path for pattern in patterns for path in ROOT.glob(f"**/{pattern}")]


def functions(folder: str) -> Iterator[tuple[str, int]]:
    """Name and length (docstring not counted) of every function below a folder."""
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                has_docstring = ast.get_docstring(node) is not None and len(node.body) > 1
                first = node.body[1].lineno if has_docstring else node.lineno
                yield (
                    f"{file.relative_to(ROOT)}:{node.lineno} {node.name}",
                    (node.end_lineno or first) - first + 1,
                )


def test_files_stay_one_room() -> None:
    """No source file is longer than 500 lines, none of the tests than 600."""
    for file in tracked("*.py", "*.c", "*.h"):
        is_test = file.is_relative_to(ROOT / "tests")
        most = MAX_TEST_FILE_LINES if is_test else MAX_FILE_LINES
        assert len(file.read_text().splitlines()) <= most, file


def test_functions_stay_readable() -> None:
    """Nineteen in twenty functions have at most 40 lines."""
    lengths = dict(functions("src"))
    long = {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES}
    assert len(long) <= LONG_FUNCTIONS_SHARE * len(lengths), long


def test_every_test_says_its_property() -> None:
    """Each test function has a docstring."""
    silent = []
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.startswith("test_")
                and not ast.get_docstring(node)
            ):
                silent.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not silent


def test_nothing_of_one_machine_is_tracked() -> None:
    """No package registry's host and no absolute path of a developer's machine."""
    names = ("deb" + r"\.debian\.org", "pypi" + r"\.org", "files" + r"\.pythonhosted")
    hosts = "|".join((*names, "registry" + r"\.npmjs"))
    leak = re.compile(rf"(^|[^a-zA-Z0-9_.])/(wo{''}rk|fa{''}rm)/|{hosts}")
    found = []
    for file in tracked("*"):
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{file.relative_to(ROOT)}:{n}"
            for n, line in enumerate(text.splitlines(), 1)
            if leak.search(line)
        ]
    assert not found


def imports_of(module: str, files: dict[str, Path]) -> set[str]:
    """The modules of ours that one imports at its top level, those for types alone included."""
    found = set()
    pending: list[ast.AST] = [ast.parse(files[module].read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (parts & files.keys()) or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & files.keys() - {module}


def test_no_import_circles() -> None:
    """No module imports, directly or by others, a module that imports it, not even for types."""
    source = ROOT / "src"
    files = {
        ".".join(f.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): f
        for f in source.rglob("*.py")
    }
    # `belljar` offers its names lazily: what it imports for types is not imported by `import
    # belljar`.
    graph = {m: imports_of(m, files) - {"belljar"} for m in files}
    TopologicalSorter(graph).prepare()
