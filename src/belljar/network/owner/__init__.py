"""The owner's side of a range. Must not: touch a link, a rule or a frame."""
