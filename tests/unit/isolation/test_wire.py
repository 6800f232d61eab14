"""The wire as its owner sees it: two ends of a cell are one."""

from __future__ import annotations

from belljar.isolation.survivors import Destruction, NotChecked, together


def destruction(
    survivors: tuple[str, ...] = (),
    unproven: tuple[NotChecked, ...] = (),
    looked: tuple[str, ...] = ("a", "b"),
) -> Destruction:
    """One that took a millisecond."""
    return Destruction(
        survivors=survivors,
        looked_for=looked,
        duration_ms=1.0,
        not_checked=unproven,
        unproven=unproven,
    )


def test_two_destructions_as_one() -> None:
    """Clean only if both are; nothing counts as looked for that could not be looked for in
    either."""
    clean, hidden = destruction(), NotChecked("a", "hidden")
    assert together(clean, clean).clean
    assert together(clean, clean).looked_for == ("a", "b")
    assert together(clean, clean).duration_ms == 2.0
    for survivor in (
        together(clean, destruction(survivors=("p",))),
        together(destruction(survivors=("p",)), clean),
    ):
        assert (survivor.clean, survivor.survivors) == (False, ("p",))
    for unproven in (
        together(clean, destruction(unproven=(hidden,))),
        together(destruction(unproven=(hidden,), looked=("b",)), clean),
    ):
        assert (unproven.clean, unproven.looked_for, unproven.not_checked) == (
            False,
            ("b",),
            (hidden,),
        )
