"""The microVM tier: QEMU's `microvm` machine, jailed, restored from a template.

Lives here: the VMM's root, its monitor, making a template, cloning it, destroying a clone.
Must not: be reached by any path of the host; run a guest command before it was renewed.
"""

from belljar.isolation.microvm.clone import LiveVm, open_vm
from belljar.isolation.microvm.template import Template, ensure_template

__all__ = ["LiveVm", "Template", "ensure_template", "open_vm"]
