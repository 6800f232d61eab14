"""Errors of the store become messages and exit codes in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.cli.main import run


@pytest.fixture
def unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that can't be one, not even for root."""
    home = tmp_path / "file" / "store"
    home.parent.write_text("")
    monkeypatch.setenv("BELLJAR_HOME", str(home))
    return home


@pytest.mark.parametrize(
    "words", [["exec", "--", "true"], ["ps"], ["runs"], ["image", "import", "oci:/nowhere"]]
)
def test_a_store_that_can_not_be_used_is_this_hosts(
    words: list[str], unusable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever meets it first: exit 3, one message that names the place and `BELLJAR_HOME`."""
    assert run(words) == 3
    said = capsys.readouterr().err
    assert str(unusable) in said
    assert "BELLJAR_HOME" in said


def test_an_error_elsewhere_is_not_blamed_on_the_store(
    unusable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect that meets another file keeps its traceback."""

    def fail() -> None:
        raise PermissionError(13, "Permission denied", "/somewhere/else")

    monkeypatch.setattr("belljar.isolation.reap.list_cells", fail)
    with pytest.raises(PermissionError):
        run(["ps"])
