"""Bundles, which carry an installation to a host without a network."""
