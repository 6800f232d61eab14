"""The package index: names of files, and what it serves."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.utils import canonicalize_name
from tests.fakes.registries import Ledger, ask, context_for, make_wheel

from belljar.network.stand_ins.pypi import check, make, parse_file_name


def test_nothing_but_listed_files(tmp_path: Path) -> None:
    """A path is looked up, not opened."""
    make_wheel(tmp_path, "one", "1.0")
    assert check({}, tmp_path) == ()
    app = make(context_for(tmp_path, Ledger()))
    for path in ("../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "\0"):
        assert ask(app, "GET", f"/packages/{path}").status == 404
    assert [ask(app, "GET", path).status for path in ("/simple/x/", "/pypi/one/json")] == [404, 404]


@given(st.text(max_size=60), st.sampled_from(["", "-1.0-py3-none-any.whl", "-1.0.tar.gz"]))
@settings(deadline=None)
def test_any_name_is_parsed_or_not(start: str, end: str) -> None:
    """No name raises, and none that is taken can be a path."""
    found = parse_file_name(start + end)
    assert found is None or ("/" not in start and canonicalize_name(found[0]) == found[0])
