"""Faults of authors' settings and files as text."""

from belljar.network.stand_ins.documents import Fault


def test_a_fault_names_its_place_and_is_escaped() -> None:
    """File, line, column and field are there if known; what an author wrote can't act on a
    terminal."""
    assert str(Fault(message="bad", path=("a", 0, "b"))) == "a[0].b: bad"
    assert (
        str(Fault(message="bad", file="x.yaml", line=2, column=3, path=("a",)))
        == "x.yaml:2:3: a: bad"
    )
    assert str(Fault(message="bad", file="x\x1b[0m")) == "x\\x1b[0m: bad"
