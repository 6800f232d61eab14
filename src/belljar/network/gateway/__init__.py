"""The gateway of one range, which dials nobody."""
