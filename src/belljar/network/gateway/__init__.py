"""A range's gateway answers on given sockets, and dials nobody."""
