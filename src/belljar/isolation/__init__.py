"""Turns a plan into a live cell and back into nothing. Must not: use the guest beyond bringing it
up; decide what a plan says.
"""
