"""`belljar.network.stand_ins.author`: the faults reported of stand-ins' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import PolicyError
from belljar.network.stand_ins.author import check_stand_ins, stand_in_problems
from belljar.policy.load import load_policy
from belljar.policy.loaded import LoadedPolicy

_HEAD = "belljar: 1\nrisk: low\nnetwork:\n  stand_ins:\n"


def loaded(folder: Path, stand_ins: str, **files: str) -> LoadedPolicy:
    """A policy with these stand-ins, and these files in `own/` below it."""
    (folder / "own").mkdir()
    for name, text in files.items():
        (folder / "own" / name.replace("_", ".")).write_text(text)
    (folder / "p.yaml").write_text(_HEAD + stand_ins)
    return load_policy(folder / "p.yaml")


@pytest.mark.parametrize(
    ("stand_in", "files", "at", "field", "message"),
    [
        ("{kind: har, names: [a.example], recording: own/a.har}", {"a_har": '{"log":\n  {]}'}, "own/", "recording", "own/a.har:2:4: not JSON"),
        ("{kind: http, names: [a.example], routes: [{path: /, bodyy: x}]}", {}, "x}]", "routes[0].bodyy", "there is no such field"),
        ("{kind: http, names: [a.example], routes: [{path: /}, {path: no}]}", {}, "no}", "routes[1].path", "a path begins with `/`"),
        ("{kind: pypi, names: [a.example], packages: own}", {}, "own}", "packages", "empty; put wheels"),
        ("{kind: pypi, names: [a.example], packages: own}", {"x_txt": ""}, "own}", "packages", "x.txt: its name is not that of a wheel"),
        (
            "{kind: python, names: [a.example], ports: [80], files: own, app: 'shop.main:app'}",
            {"a_py": ""},
            "'shop",
            "app",
            "neither `shop/main.py` nor `shop/main/__init__.py` in `own`",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_has_its_place(
    stand_in: str, files: dict[str, str], at: str, field: str, message: str, tmp_path: Path
) -> None:
    """The policy's line and column, and the file's if in one, by the path from the policy."""
    policy = loaded(tmp_path, f"    site: {stand_in}\n", **files)
    problem = stand_in_problems(policy)[0]
    line, column = 5, len("    site: ") + stand_in.index(at) + 1
    assert (problem.mark.line, problem.mark.column) == (line, column)
    assert problem.field == f"network.stand_ins.site.{field}"
    assert message in problem.message
    with pytest.raises(PolicyError) as refused:
        check_stand_ins(policy)
    assert f"p.yaml:{line}:{column}" in str(refused.value)
    assert message in str(refused.value)


def test_what_is_right_is_let_through(tmp_path: Path) -> None:
    """And so is a policy without a network."""
    policy = loaded(
        tmp_path,
        "    a: {kind: http, names: [a.example], routes: [{path: /, body: hello}]}\n"
        "    b: {kind: cell, names: [b.example], ports: [80]}\n"
        "    c: {kind: python, names: [c.example], ports: [80], files: own, app: 'main:app'}\n",
        main_py="",
    )
    assert stand_in_problems(policy) == ()
    check_stand_ins(policy)
    (tmp_path / "none.yaml").write_text("belljar: 1\nrisk: low\n")
    check_stand_ins(load_policy(tmp_path / "none.yaml"))
