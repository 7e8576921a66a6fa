"""Embedding tables in memory: rows in arenas, an index of ids, and what memory is left for more."""
