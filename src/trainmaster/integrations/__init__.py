"""Ways in for those who come from elsewhere: command lines that they know, workflow systems, notebooks."""
