"""Ways in for users of other systems: their command lines, workflow systems, notebooks."""
