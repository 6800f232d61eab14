"""The supervisor of a range. It parses nothing of a guest's but fixed headers."""
