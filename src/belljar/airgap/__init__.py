"""The air gap: which ways lead beyond this host, and bundles for a host that has none."""
