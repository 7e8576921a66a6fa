"""Records on their way to programs: leases of shards, streams."""
