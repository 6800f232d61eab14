"""Decoys, the guard's scanner, and what events mean to them: bytes and events in, findings out.

`cell` places files, `isolation` stops cells.
"""
