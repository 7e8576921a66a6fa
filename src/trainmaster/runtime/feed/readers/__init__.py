"""A feed in the form that a framework reads."""
