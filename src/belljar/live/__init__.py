"""Shows runs while they last, from their records.

Must not hold what a crash could lose, or judge.
"""
