"""The gateway of one range answers on sockets it was given, and dials nobody."""
