"""The agent: the supervisor in each container. It prepares, starts, watches and ends attempts, and reports to the master."""
