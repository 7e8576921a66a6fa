"""An application of Spark's for one job: what it asks for, how it is started, and its driver."""
