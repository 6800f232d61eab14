"""The guest kernel: modules in an order in which they load."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import HostError
from belljar.image.kernel import adopt_kernel, build_initramfs, current_kernel, load_order


def module(*needed: str) -> bytes:
    return b"\x7fELF\0license=GPL\0depends=" + ",".join(needed).encode() + b"\0retpoline=Y\0"


def test_dependencies_come_first_and_once() -> None:
    """Built-in ones are left out; a circle ends; a missing one makes the kernel unusable."""
    modules = {
        "virtio_rng": module("rng-core", "virtio"),
        "rng_core": module(),
        "overlay": module("virtio"),
        "a": module("b"),
        "b": module("a"),
    }
    order = load_order(["virtio-rng", "rng-core", "overlay"], read=modules.get, builtin={"virtio"})
    assert [name for name, _ in order] == ["rng_core", "virtio_rng", "overlay"]
    assert {name for name, _ in load_order(["a"], read=modules.get, builtin=set())} == {"a", "b"}
    with pytest.raises(HostError, match="no module gone"):
        load_order(["gone"], read=modules.get, builtin=set())


def kernel_of_another_store(tmp_path: Path) -> Path:
    directory = tmp_path / "tmp/kernel"
    (directory / "modules").mkdir(parents=True)
    for name, content in (("vmlinuz", b"kernel"), ("modules/00-a.ko", module())):
        (directory / name).write_bytes(content)
    loaded = [["vmlinuz", b"kernel"], ["00-a.ko", module()]]
    listing = [[name, hashlib.sha256(content).hexdigest()] for name, content in loaded]  # type: ignore[arg-type]
    digest = hashlib.sha256(json.dumps(listing, separators=(",", ":")).encode()).hexdigest()
    about = {"release": "6.12", "package": "p", "package_sha256": "s", "modules": ["00-a.ko"]}
    (directory / "kernel.json").write_text(json.dumps(about))
    return directory.rename(directory.with_name(digest))


@pytest.mark.parametrize("name", ["vmlinuz", "modules/01-b.ko"])
def test_a_kernel_of_another_store_is_taken_as_it_was(name: str, tmp_path: Path) -> None:
    """With a changed kernel or module, or one module more, nothing becomes current."""
    directory = kernel_of_another_store(tmp_path / "good")
    assert adopt_kernel(tmp_path / "good", directory) == current_kernel(tmp_path / "good")
    directory = kernel_of_another_store(tmp_path)
    (directory / name).write_bytes(b"other")
    with pytest.raises(HostError):
        adopt_kernel(tmp_path, directory)
    with pytest.raises(HostError):
        current_kernel(tmp_path)


# --- the cpio archive: each microVM of the other tests shows that it boots

ELF = b"\x7fELF"


def test_what_is_no_program_is_not_packed() -> None:
    """Neither a probe program nor a module; the probe can be run, and not read by others."""
    assert b"%08X" % 0o100711 in gzip.decompress(build_initramfs(ELF, [], probe=ELF))
    for modules, program in (([], b"#!/bin/sh"), ([("squashfs", b"\xfd7zXZ\0")], ELF)):
        with pytest.raises(ValueError, match="not an ELF"):
            build_initramfs(ELF, modules, probe=program)


@given(st.binary(max_size=300), st.lists(st.binary(max_size=50), max_size=5))
def test_same_input_same_bytes(agent: bytes, modules: list[bytes]) -> None:
    """Nothing of the time or the host goes in."""
    named = [(f"m{i}", ELF + contents) for i, contents in enumerate(modules)]
    image = build_initramfs(ELF + agent, named)
    assert image == build_initramfs(ELF + agent, named)
    assert struct.unpack_from("<I", image, 4) == (0,)
