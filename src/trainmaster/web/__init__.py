"""Pages and REST over facts and actions that are handed in."""
