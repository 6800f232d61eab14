"""What this machine can do; slow facts are cached in the store's `facts/`. Must not: install or
decide anything.
"""
