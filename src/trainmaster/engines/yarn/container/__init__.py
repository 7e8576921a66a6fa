"""The beginning of a container of YARN."""
