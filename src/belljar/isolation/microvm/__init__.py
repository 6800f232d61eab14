"""MicroVMs: QEMU in a jail, cloned from templates; no guest command runs before renewal."""
