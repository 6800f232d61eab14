"""Faults of authors' settings and files as text."""

from belljar.network.stand_ins.documents import Fault, missing_settings


def test_a_fault_names_its_place_and_is_escaped() -> None:
    """File, line, column and field are there if known; what an author wrote can't act on a
    terminal."""
    assert str(Fault(message="bad", path=("a", 0, "b"))) == "a[0].b: bad"
    assert (
        str(Fault(message="bad", file="x.yaml", line=2, column=3, path=("a",)))
        == "x.yaml:2:3: a: bad"
    )
    assert str(Fault(message="bad", file="x\x1b[0m")) == "x\\x1b[0m: bad"


def test_missing_settings_are_faults() -> None:
    """One for each that is not there."""
    assert [fault.path for fault in missing_settings({"a": 1}, ("a", "b"))] == [("b",)]
