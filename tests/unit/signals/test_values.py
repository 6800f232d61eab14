"""What a scanner looks for: bounds, JSON both ways, nothing shown."""

from __future__ import annotations

import pytest

from belljar.signals.values import KnownValue, ValueSource, spec_of

KEY = bytes(range(32))
VALUE = KnownValue(
    id="aws/key", text="AKq9-xR7m.Zp2LwT8", source=ValueSource.DECOY, kind="aws_credentials"
)


@pytest.mark.promise("5.7")
def test_no_representation_shows_a_value_or_the_key() -> None:
    """Neither a value's nor a spec's repr holds the value or the key."""
    spec = spec_of([VALUE], [], [], KEY)
    for shown in (repr(VALUE), repr(spec)):
        assert VALUE.text not in shown
        assert spec.key_hex not in shown


@pytest.mark.parametrize("text", ["short", "x" * 4097, ""])
def test_a_value_out_of_bounds_is_refused_without_being_shown(text: str) -> None:
    """Too short or too long a value is a ValueError that names its id alone."""
    with pytest.raises(ValueError, match="bytes") as refused:
        spec_of([KnownValue(id="v", text=text, source=ValueSource.PROTECTED)], [], [], KEY)
    assert not text or text not in str(refused.value)


def test_of_equal_values_a_decoy_comes_first() -> None:
    """A value that is both decoy and protected is one, the decoy's."""
    protected = KnownValue(id="p", text=VALUE.text, source=ValueSource.PROTECTED)
    assert spec_of([protected], [], [VALUE], KEY).values == (VALUE,)
