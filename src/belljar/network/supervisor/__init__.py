"""The supervisor of a range. Must not: parse anything of a guest's but fixed headers."""
