"""What a gateway holds back."""

from __future__ import annotations

import pytest

from belljar.events import JsonValue, Kind
from belljar.ledger.schema import check_data
from belljar.network.gateway.config import GuardConfig
from belljar.network.gateway.guard import Guard
from belljar.policy.guarding import Action, Place
from belljar.signals.values import Channel, KnownValue, ScanBounds, ScanSpec, ValueSource

SECRET = "ORCHID-7731-codename"
VALUE = KnownValue(id="codename", text=SECRET, source=ValueSource.PROTECTED)


def guard(range_action: Action, upstream_action: Action, bounds: ScanBounds | None = None) -> Guard:
    """Of a range with the real service `real`."""
    spec = ScanSpec(values=(VALUE,), key_hex="00" * 32, bounds=bounds or ScanBounds())
    config = GuardConfig(
        spec=spec, actions={Place.RANGE: range_action, Place.UPSTREAM: upstream_action}
    )
    return Guard(config, frozenset({"real"}))


@pytest.mark.parametrize(
    ("range_action", "upstream_action", "shop", "real"),
    [
        (Action.FLAG, Action.BLOCK, False, True),
        (Action.BLOCK, Action.FLAG, True, False),
        (Action.STOP, Action.STOP, True, True),
    ],
)
def test_only_what_the_policy_blocks_is_held(
    range_action: Action,
    upstream_action: Action,
    shop: bool,
    real: bool,
) -> None:
    """By place; what isn't held is neither looked at nor blocked here."""
    made = guard(range_action, upstream_action)
    assert (made.scans("shop"), made.scans("real")) == (shop, real)
    for stand_in, held in (("shop", shop), ("real", real)):
        looked = made.scan(stand_in, Channel.HTTP, [("body", SECRET.encode())], {"cell": "a"})
        assert looked.blocked is held
        assert len(looked.items) == held


@pytest.mark.promise("5.7")
def test_what_it_found_fits_the_record_and_holds_no_value() -> None:
    """Class, place, digest and what was done, never the value."""
    looked = guard(Action.BLOCK, Action.BLOCK).scan(
        "real", Channel.HTTP, [("url", b"/"), ("body", b"x=" + SECRET.encode())], {"cell": "a"}
    )
    [item] = looked.items
    assert item.kind == Kind.GUARD_HIT
    check_data(Kind.GUARD_HIT, dict(item.data))
    assert SECRET not in str(item.data)
    assert (item.data["place"], item.data["action"], item.data["start"]) == ("upstream", "block", 2)


@pytest.mark.promise("5.7")
def test_what_could_not_be_scanned_is_blocked_where_it_would_leave_the_host() -> None:
    """And goes on within the range; both are on record."""
    made = guard(Action.BLOCK, Action.BLOCK, ScanBounds(decoded_bytes=0))
    import base64

    data = base64.b64encode(b"some text that is long enough to be decoded " * 40)
    for stand_in, blocked in (("shop", False), ("real", True)):
        looked = made.scan(stand_in, Channel.HTTP, [("body", data)], {"cell": "a"})
        assert looked.blocked is blocked
        assert [item.kind for item in looked.items] == [Kind.GUARD_UNSCANNED]
        check_data(Kind.GUARD_UNSCANNED, dict(looked.items[0].data))


@pytest.mark.promise("5.7")
def test_a_scan_that_takes_too_long_is_one_that_was_not_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What would leave the host is held back, whatever else was found; the rest goes on. The reason
    is said."""
    monkeypatch.setattr("belljar.network.gateway.guard.SCAN_TIMEOUT_S", -1.0)
    made = guard(Action.BLOCK, Action.BLOCK)
    for stand_in, blocked in (("shop", False), ("real", True)):
        looked = made.scan(
            stand_in, Channel.HTTP, [("body", b"an ordinary text of some length")], {"cell": "a"}
        )
        assert (looked.blocked, [item.data["reason"] for item in looked.items]) == (
            blocked,
            ["time"],
        )


@pytest.mark.promise("5.7")
def test_connections_of_one_stand_in_are_apart() -> None:
    """Another connection's bytes between two pieces don't hide a value, and complete none."""
    made = guard(Action.BLOCK, Action.BLOCK)

    def is_blocked(connection: int, data: str) -> bool:
        common: dict[str, JsonValue] = {"cell": "a", "connection": connection}
        return made.scan("shop", Channel.STREAM, [("data", data.encode())], common).blocked

    assert not is_blocked(1, SECRET[:9])
    assert not is_blocked(2, "something else")
    assert is_blocked(1, SECRET[9:])
    assert not is_blocked(3, SECRET[:9])
    assert not is_blocked(4, SECRET[9:])
