"""The container and gvisor tiers: an OCI runtime in our jail.

Holds: unpacked images, runtime, container. Must not: decide what a plan says (`plan/oci.py`).
"""
