"""The microVM tier: QEMU's `microvm` machine, jailed, restored from a template.

Must not: let a host path reach it; run guest commands before renewal.
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
