"""The store's locks, scratch directories and journal. Must not end a cell."""
