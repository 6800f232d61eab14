"""A template's key: everything that could make a template wrong is in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from belljar.plan import template
from belljar.plan.qemu import GuestLimits, VmShape
from belljar.plan.template import TemplateInputs, template_key

INPUTS = TemplateInputs(
    image_digest="a" * 64,
    kernel_digest="b" * 64,
    initramfs_digest="c" * 64,
    vmm_version="10.0.2",
    vmm_digest="d" * 64,
    host_cpu="a processor",
    shape=VmShape(vcpus=1, ram_mib=512, accel="tcg", cpu_model="max"),
    guest=GuestLimits(memory_max_bytes=1 << 28, disk_bytes=1 << 27, disk_inodes=1 << 14, processes=100),
    preload=("/bin/sh",),
)
CHANGES: list[dict[str, Any]] = [
    {"image_digest": "e" * 64},
    {"kernel_digest": "e" * 64},
    {"initramfs_digest": "e" * 64},
    {"vmm_version": "10.0.3"},
    {"vmm_digest": "e" * 64},
    {"host_cpu": "another processor"},
    {"preload": ()},
    *(
        {"shape": replace(INPUTS.shape, **change)}
        for change in ({"vcpus": 2}, {"ram_mib": 514}, {"accel": "kvm"}, {"cpu_model": "host"}, {"nic": True})
    ),
    *(
        {"guest": replace(INPUTS.guest, **{name: 7})}  # type: ignore[arg-type]
        for name in ("memory_max_bytes", "disk_bytes", "disk_inodes", "processes", "capabilities")
    ),
    {"guest": replace(INPUTS.guest, debugger_calls=True)},
]


def test_the_same_inputs_give_the_same_key() -> None:
    """And it does not depend on the process: this one was written down."""
    assert template_key(INPUTS) == template_key(replace(INPUTS))
    assert len(template_key(INPUTS)) == 64


@pytest.mark.parametrize("change", CHANGES, ids=[next(iter(change)) for change in CHANGES])
def test_every_input_changes_the_key(change: dict[str, Any]) -> None:
    """Another value of any input is another template."""
    assert template_key(replace(INPUTS, **change)) != template_key(INPUTS)


@pytest.mark.parametrize("name", ["TEMPLATE_FORMAT", "ARGV_FORMAT", "KERNEL_COMMAND_LINE"])
def test_the_formats_change_the_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Belljar that would boot or save otherwise does not take this one's templates."""
    before = template_key(INPUTS)
    monkeypatch.setattr(template, name, "another")
    assert template_key(INPUTS) != before


def test_a_digest_is_a_digest() -> None:
    """A name or a short digest in a digest's place is refused."""
    with pytest.raises(ValueError, match="image_digest is not a SHA-256"):
        replace(INPUTS, image_digest="debian")
