"""Turns a plan into a live cell and back into nothing.

Holds: jail, engines of all tiers, templates, destruction with its proof.

Must not: use the guest beyond bringing it up; decide what a plan says.
"""
