"""The event log of a job on any storage: append, follow, snapshot, index."""
