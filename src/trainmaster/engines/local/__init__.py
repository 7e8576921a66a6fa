"""The local engine: one machine shared by all jobs of a user, without a daemon."""
