"""The agent: the supervisor in each container. It prepares, starts, watches and ends attempts, and tells the master."""
