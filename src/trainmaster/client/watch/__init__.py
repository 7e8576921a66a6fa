"""A job while it runs and afterwards: status, output, events."""
