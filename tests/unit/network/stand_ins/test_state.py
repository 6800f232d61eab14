"""What is remembered is bounded, and counted as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins import routes as state
from belljar.network.stand_ins.routes import Sessions, StateError, Store, size_of

KEYS = st.lists(st.sampled_from(["a", "b", 0, -1, 1]), max_size=4)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "append", "increment", "delete"]), KEYS, VALUES), max_size=25
)


@given(STEPS)
def test_no_order_of_changes_gets_above_the_bound(
    steps: list[tuple[str, list[str | int], object]],
) -> None:
    """After any changes, refused ones among them, the tree is at most as large as its bound, and
    exactly as large as it is counted."""
    store = Store({"a": [1]}, 800)
    for verb, keys, value in steps:
        try:
            match verb:
                case "increment":
                    store.increment(keys, 3)
                case "delete":
                    store.delete(keys)
                case _:
                    getattr(store, verb)(keys, value)
        except StateError:
            pass
        assert size_of(store.values) == store.size <= size_of({"a": [1]}) + 800


def test_a_mapping_in_the_place_of_null_is_counted_as_that() -> None:
    """Null is no mapping: one that is made on the way takes its place and its count."""
    store = Store({"a": None, "l": [None]}, 800)
    store.set(["a", "b", "c"], None)
    store.delete(["l", 0])
    assert store.values == {"a": {"b": {"c": None}}, "l": []}
    assert store.size == size_of(store.values)


@pytest.mark.parametrize("part", [[], {}, "", 1.5])
def test_what_is_short_as_json_counts_what_it_takes(part: object) -> None:
    """Six thousand bytes of empty lists take twenty times as much: in as many sessions as there may
    be, more than a gateway has."""
    store = Store({}, 64 << 10)
    with pytest.raises(StateError):
        store.set(["x"], [part] * 2000)
    assert store.values == {}


def test_what_is_refused_leaves_no_mapping_on_the_way() -> None:
    """A value that has no room, or isn't JSON, changes nothing."""
    store = Store({}, 40)
    with pytest.raises(StateError):
        store.set(["a", "b"], "x" * 40)
    with pytest.raises(StateError):
        store.append(["a", "b"], object())
    assert (store.values, store.size) == ({}, size_of({}))


def test_changes() -> None:
    """Mappings on the way are made, lists begin empty, numbers at 0; what doesn't fit is refused
    and changes nothing."""
    store = Store({}, 1000)
    store.set(["a", "b"], {"c": 1})
    store.append(["list"], "x")
    store.append(["list"], "y")
    store.set(["list", 0], "z")
    store.increment(["n"], 2)
    store.increment(["n"], -5)
    store.delete(["a", "b", "c"])
    store.delete(["no", "such"])
    assert store.values == {"a": {"b": {}}, "list": ["z", "y"], "n": -3}
    refused: list[tuple[str, list[str | int], object]] = [
        ("increment", ["list"], 1),
        ("set", ["list", 9], 1),
        ("set", ["n", "x"], 1),
        ("append", ["n"], 1),
        ("set", [], 1),
        ("increment", ["n"], 2**60),
    ]
    for verb, keys, value in refused:
        with pytest.raises(StateError):
            getattr(store, verb)(keys, value)
    assert store.values == {"a": {"b": {}}, "list": ["z", "y"], "n": -3}


def test_what_is_stored_is_a_copy() -> None:
    """A value that stands in two places isn't one value."""
    store, value = Store({}, 1000), [1]
    store.set(["a"], value)
    store.set(["b"], store.values["a"])
    store.append(["a"], 2)
    assert (store.values, value) == ({"a": [1, 2], "b": [1]}, [1])


def test_room_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing and deleting give their room back, over and over; a list has a most of entries."""
    store = Store({}, 300)
    for _ in range(200):
        store.set(["x"], "y" * 50)
        store.delete(["x"])
    monkeypatch.setattr(state, "MAX_ENTRIES", 2)
    store.append(["l"], 1)
    store.append(["l"], 1)
    with pytest.raises(StateError):
        store.append(["l"], 1)


def test_sessions_by_their_own_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was started is found; the one unused for longest goes first."""
    monkeypatch.setattr(state, "MAX_SESSIONS", 2)
    numbers = iter(range(9))
    sessions = Sessions(lambda n: next(numbers).to_bytes(n))
    names = [sessions.start()[0] for _ in range(2)]
    assert sessions.find(names[0]) is not None
    third = sessions.start()[0]
    assert [sessions.find(name) is not None for name in (*names, third, "x")] == [
        True,
        False,
        True,
        False,
    ]
