"""The microVM tier: QEMU's `microvm` machine, jailed, restored from a template.

Lives here: the VMM's root, its monitor, making a template, cloning it, destroying a clone.
Must not: be reached by any path of the host; run a guest command before it was renewed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.isolation.microvm.clone import open_vm
    from belljar.isolation.microvm.template import Template, ensure_template
    from belljar.isolation.microvm.vmm import Vmm

__all__ = ["Template", "Vmm", "ensure_template", "open_vm"]

__getattr__ = lazy_names(
    __name__,
    {
        "Vmm": "belljar.isolation.microvm.vmm",
        "open_vm": "belljar.isolation.microvm.clone",
        **dict.fromkeys(("Template", "ensure_template"), "belljar.isolation.microvm.template"),
    },
)
