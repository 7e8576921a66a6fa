"""How files become records, and records files."""
