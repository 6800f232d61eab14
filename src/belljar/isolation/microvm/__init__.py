"""The microVM tier: QEMU's `microvm` machine, jailed, restored from a template.

Must not: let a host path reach it; run guest commands before renewal.
"""
