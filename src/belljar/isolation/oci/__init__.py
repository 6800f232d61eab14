"""Containers and gVisor sandboxes: OCI runtimes in a jail."""
