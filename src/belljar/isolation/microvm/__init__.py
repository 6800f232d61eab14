"""MicroVMs: QEMU in a jail, cloned from templates; renewed before guest commands."""
