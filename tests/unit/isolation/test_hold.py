"""The hold and kill orders: durable words between processes that fail closed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import CellError, HostError
from belljar.isolation.hold import (
    HOLD_FILE,
    check_may_start,
    give_order,
    new_order,
    read_hold,
    read_order,
    release,
    run_order_kept,
    sweep_orders,
)
from belljar.store.journal import Journal

CELL, RUN = "c-0123456789ab", "20260101-000000000-abcdef"


@pytest.mark.promise("6.4")
@pytest.mark.parametrize("damage", [b"\xff{", b" " * (1 << 20), "directory", "link"])
def test_a_damaged_hold_holds(tmp_path: Path, damage: bytes | str) -> None:
    """Whatever stands in its place counts, is said to be damaged, and can be released."""
    file = tmp_path / HOLD_FILE
    if isinstance(damage, bytes):
        file.write_bytes(damage)
    elif damage == "directory":
        file.mkdir()
    else:
        file.symlink_to("/nonexistent")
    held = read_hold(tmp_path)
    assert held is not None
    assert "damaged" in held.reason
    with pytest.raises(HostError, match="damaged"):
        check_may_start(tmp_path, cell=CELL)
    if damage != "directory":
        release(tmp_path)
        check_may_start(tmp_path)


@pytest.mark.promise("6.4")
@given(content=st.binary(max_size=300))
def test_no_bytes_in_its_place_let_a_cell_be_made(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A hold file of any content is a hold, an order of any content an order."""
    home = tmp_path_factory.mktemp("store")
    (home / HOLD_FILE).write_bytes(content)
    (home / "journal").mkdir()
    (home / "journal" / f"{CELL}.kill").write_bytes(content)
    assert read_hold(home) is not None
    assert read_order(home, CELL) is not None


def test_want_of_descriptors_is_no_order(tmp_path: Path) -> None:
    """Nobody gave one: a cell is not killed for it. The order that is there is found again."""
    give_order(tmp_path, [CELL], new_order("cells", "enough"))
    none_left = OSError(errno.EMFILE, "Too many open files")
    with patch("belljar.isolation.hold.os.open", side_effect=none_left):
        assert read_order(tmp_path, CELL) is None
        with pytest.raises(OSError, match="open files"):
            read_hold(tmp_path)
    assert read_order(tmp_path, CELL) is not None


@pytest.mark.promise("6.3")
def test_the_first_order_stands(tmp_path: Path) -> None:
    """Two killers at once: the cell is told one reason, whole; the other's draft is gone."""
    give_order(tmp_path, [CELL], new_order("cells", "first"))
    give_order(tmp_path, [CELL], new_order("all", "second"))
    order = read_order(tmp_path, CELL)
    assert order is not None
    assert (order.reason, order.scope, order.is_ours) == ("first", "cells", True)
    assert [path.name for path in (tmp_path / "journal").iterdir()] == [f"{CELL}.kill"]
    with pytest.raises(CellError, match="killed by the operator: first"):
        check_may_start(tmp_path, cell=CELL)
    Journal(tmp_path).remove(CELL)
    check_may_start(tmp_path, cell=CELL)


def test_old_orders_of_cells_that_are_gone_are_swept(tmp_path: Path) -> None:
    """A young one stays, and so does that of a cell that is there."""
    give_order(tmp_path, [CELL, "c-00000000000a"], new_order("cells", ""))
    give_order(tmp_path, ["c-00000000000b"], new_order("cells", ""))
    journal = tmp_path / "journal"
    (journal / "c-00000000000a.json").write_text("{}")
    for name in (CELL, "c-00000000000a"):
        os.utime(journal / f"{name}.kill", (0, 0))
    sweep_orders(journal)
    assert {path.stem for path in journal.glob("*.kill")} == {"c-00000000000a", "c-00000000000b"}
    (journal / "c-00000000000a.json").unlink()


@pytest.mark.promise("6.4", "7.5")
def test_a_runs_order_ends_with_the_run(tmp_path: Path) -> None:
    """Nothing of a killed run stays in the journal."""
    with run_order_kept(tmp_path, RUN):
        give_order(tmp_path, [RUN, CELL], new_order("run", ""))
        with pytest.raises(CellError, match="the run was killed by the operator"):
            check_may_start(tmp_path, run=RUN)
    check_may_start(tmp_path, run=RUN)
    assert read_order(tmp_path, CELL) is not None
