"""Hadoop YARN: containers of a cluster, asked for and started in Python alone."""
