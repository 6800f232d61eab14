"""Immutable root filesystems by digest, the guest kernel and the initramfs.

Lives here: building, importing and storing images; the kernel.
Must not: mount or run an image on the host; trust a path, name or size of an archive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.image.config import HealthCheck, ImageConfig, image_differences, image_health
    from belljar.image.kernel import Kernel, current_kernel
    from belljar.image.store import Image, Store, verify

__all__ = [
    "HealthCheck",
    "Image",
    "ImageConfig",
    "Kernel",
    "Store",
    "current_kernel",
    "image_differences",
    "image_health",
    "verify",
]

__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(
            ("HealthCheck", "ImageConfig", "image_differences", "image_health"),
            "belljar.image.config",
        ),
        **dict.fromkeys(("Kernel", "current_kernel"), "belljar.image.kernel"),
        **dict.fromkeys(("Image", "Store", "verify"), "belljar.image.store"),
    },
)
