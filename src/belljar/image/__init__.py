"""Immutable root filesystems by digest, the guest kernel and the initramfs.

Lives here: building, importing and storing images; the kernel.
Must not: mount or run an image on the host; trust a path, name or size of an archive.
"""
