"""Immutable root filesystems by digest, the guest kernel and the initramfs."""
