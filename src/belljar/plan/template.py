"""A template's key, purely: everything that could make a template wrong for a cell is in it, so a
change of any of it makes another template.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from belljar.dataclass import dataclass
from belljar.plan.qemu import ARGV_FORMAT, KERNEL_COMMAND_LINE, GuestLimits, VmShape

TEMPLATE_FORMAT = 2
"""Raised with every change of what a template's directory holds or of what the guest has done when
it is taken.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInputs:
    """What a template is made from and for. Digests are lower-case hex SHA-256.

    `vmm_digest` covers the VMM's binary, its libraries and its firmware; `host_cpu` is what the
    host's processor says of itself: under KVM its features, which the guest has seen; under TCG its
    model, whose time-stamp counter the guest's clock runs by.
    """

    image_digest: str
    kernel_digest: str
    initramfs_digest: str
    vmm_version: str
    vmm_digest: str
    host_cpu: str
    shape: VmShape
    guest: GuestLimits
    preload: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises `ValueError` when a digest is none."""
        for name in ("image_digest", "kernel_digest", "initramfs_digest", "vmm_digest"):
            digest = getattr(self, name)
            if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
                raise ValueError(f"{name} is not a SHA-256 in lower-case hex: {digest!r}")

    def document(self) -> dict[str, object]:
        """What the key is the digest of; kept beside the template."""
        formats = {
            "template": TEMPLATE_FORMAT,
            "argv": ARGV_FORMAT,
            "command_line": KERNEL_COMMAND_LINE,
        }
        return {"formats": formats, **asdict(self)}


def template_key(inputs: TemplateInputs) -> str:
    """64 hex digits; equal when, and only when, every input is equal."""
    text = json.dumps(inputs.document(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
