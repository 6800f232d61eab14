"""A range's packet record: what is kept, and what is read back afterwards."""
