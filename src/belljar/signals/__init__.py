"""Decoys, the guard's scanner, and what events mean to them."""
