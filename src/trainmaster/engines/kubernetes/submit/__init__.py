"""A job on its way to a cluster: its objects, its files, the rights that it needs."""
