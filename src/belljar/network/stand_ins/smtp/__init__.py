"""A mail server that accepts everything and sends nothing.

Each message, login and recipient is put on record.

Speaks SMTP (RFC 5321) with SIZE, 8BITMIME, SMTPUTF8, PIPELINING, and AUTH PLAIN and LOGIN (RFC
4954). Not: STARTTLS (a port of the protocol `smtps` has TLS from the start), CHUNKING, delivery
reports.
"""

from belljar.network.stand_ins.smtp.server import check, make

__all__ = ["check", "make"]
