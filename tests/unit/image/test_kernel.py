"""The guest kernel: modules in an order in which they load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import HostError
from belljar.image.kernel import dependencies, load_order, module_name


def module(*needed: str) -> bytes:
    """A module that needs others, as its `.modinfo` says."""
    return b"\x7fELF\0license=GPL\0depends=" + ",".join(needed).encode() + b"\0retpoline=Y\0"


def test_dependencies_come_first_and_once() -> None:
    """Each module follows what it needs; built-in ones are left out; spellings don't matter."""
    modules = {
        "virtio_rng": module("rng-core", "virtio"),
        "rng_core": module(),
        "overlay": module("virtio"),
    }
    order = load_order(["virtio-rng", "rng-core", "overlay"], read=modules.get, builtin={"virtio"})
    assert [name for name, _ in order] == ["rng_core", "virtio_rng", "overlay"]


def test_a_missing_module_is_an_error() -> None:
    """Neither there nor built in: the kernel can't be used."""
    with pytest.raises(HostError, match="no module gone"):
        load_order(["gone"], read=lambda _name: None, builtin=set())


def test_a_circle_ends() -> None:
    """Modules that need each other don't loop."""
    modules = {"a": module("b"), "b": module("a")}
    assert {name for name, _ in load_order(["a"], read=modules.get, builtin=set())} == {"a", "b"}


@given(st.binary(max_size=300))
def test_any_bytes_have_dependencies_or_none(noise: bytes) -> None:
    """Reading `.modinfo` never fails."""
    assert isinstance(dependencies(noise), tuple)


def test_names_are_as_the_kernel_says_them() -> None:
    """File endings and dashes don't count."""
    assert module_name("virtio-rng.ko.xz") == module_name("virtio_rng.ko") == "virtio_rng"
