"""The owner's side of a range. It touches no link, rule or frame."""
