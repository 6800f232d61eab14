"""Finds out what this machine can do. Must not: install or decide anything."""
