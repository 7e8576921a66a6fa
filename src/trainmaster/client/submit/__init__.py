"""From a job to a running master."""
