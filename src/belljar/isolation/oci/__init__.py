"""The container and gvisor tiers: an OCI runtime in our jail.

Holds: unpacked images, runtime, container. Must not: decide what a plan says (`plan/oci.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.isolation.oci.container import Container
    from belljar.isolation.oci.open import open_container
    from belljar.isolation.oci.trees import ensure_tree
    from belljar.isolation.proofs import prove_runtime

__all__ = [
    "Container",
    "ensure_tree",
    "open_container",
    "prove_runtime",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Container": "belljar.isolation.oci.container",
        "open_container": "belljar.isolation.oci.open",
        "prove_runtime": "belljar.isolation.proofs",
        "ensure_tree": "belljar.isolation.oci.trees",
    },
)
