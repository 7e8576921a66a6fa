"""The connections of a master: its listeners, its agents, and those who read."""
