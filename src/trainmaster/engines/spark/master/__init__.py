"""Spark as the master of one job uses it."""
