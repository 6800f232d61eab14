"""The public names, imported late."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import belljar


def test_the_librarys_names_are_found() -> None:
    """Each name of `belljar.__all__` is there; another is an `AttributeError`."""
    assert [name for name in belljar.__all__ if not hasattr(belljar, name)] == []
    with pytest.raises(AttributeError):
        belljar.no_such_name  # noqa: B018


def test_importing_belljar_costs_nothing() -> None:
    """Nothing but the standard library's comes with it, and no room: only what knows the
    version."""
    code = "import sys; before = set(sys.modules); import belljar; print(set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {name for name in ast.literal_eval(ran.stdout) if name.startswith("belljar.")}
    assert found == {"belljar.package"}
    rooms = {name.split(".")[0] for name in ast.literal_eval(ran.stdout)}
    assert rooms - sys.stdlib_module_names == {"belljar"}
