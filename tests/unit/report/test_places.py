"""Names of a range's addresses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from belljar.report.requests import NAMED, Places
from belljar.units import printable


def test_a_place_is_told_by_its_names() -> None:
    """One that nobody asked for by its address; one name by that alone, in whatever case it was
    asked for; several beside the address."""
    places = Places()
    assert places.label("10.0.0.7:80") == "10.0.0.7:80"
    for name in ("Shop.example", "shop.example."):
        places.named(name, "10.0.0.7")
    assert places.label("10.0.0.7:80") == "shop.example:80"
    assert places.label("10.0.0.7") == "shop.example"
    places.named("pay.example", "10.0.0.7")
    assert places.label("10.0.0.7:80") == "10.0.0.7:80 (shop.example, pay.example)"
    assert places.label("10.0.0.7") == "10.0.0.7 (shop.example, pay.example)"
    assert places.label("2001:db8::1") == "2001:db8::1"


@given(
    st.lists(
        st.text(max_size=100),
        min_size=NAMED + 1,
        unique_by=lambda name: printable(name.lower().rstrip(".")),
    )
)
def test_whatever_is_asked_for(names: list[str]) -> None:
    """So many are told, and that there are others; all escaped."""
    places = Places()
    for name in names:
        places.named(name, "10.0.0.7")
    said = places.label("10.0.0.7:80")
    assert said.endswith(" and other names)")
    assert said == printable(said)
    assert len(said) < 4096
