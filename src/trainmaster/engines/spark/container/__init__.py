"""A container of Spark, from inside."""
