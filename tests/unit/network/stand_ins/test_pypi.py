"""What the package index serves."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.registries import Ledger, ask, context_for, make_wheel

from belljar.network.stand_ins.registries import Pypi, check


def test_nothing_but_listed_files(tmp_path: Path) -> None:
    """A path is looked up, not opened."""
    make_wheel(tmp_path, "one", "1.0")
    assert check({}, tmp_path) == ()
    app = Pypi(context_for(tmp_path, Ledger()))
    for path in ("../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "\0"):
        assert ask(app, "GET", f"/packages/{path}").status == 404
    assert [ask(app, "GET", path).status for path in ("/simple/x/", "/pypi/one/json")] == [404, 404]
