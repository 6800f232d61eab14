"""Builds and stores images; never mounts or runs one on the host."""
