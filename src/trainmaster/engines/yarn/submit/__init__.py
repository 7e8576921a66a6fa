"""A job on its way to a cluster: its files, its launch context, how long it can last."""
