"""Builds, imports and stores images, and the guest kernel. Must not mount or run an image on the
host, or trust a path, name or size of an archive.
"""
