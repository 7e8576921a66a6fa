"""How workers and parameter servers speak.

`messages`: on any transport. `connections`: over Unix sockets with shared memory, and over TCP with TLS.
"""
