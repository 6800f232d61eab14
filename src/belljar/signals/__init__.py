"""Decoys, the guard's scanner, and events' meaning."""
