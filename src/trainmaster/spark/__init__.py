"""Deep learning inside a Spark application."""
