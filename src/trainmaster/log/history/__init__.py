"""Read what a job was, out of its log: for readers alone, and only where somebody looks."""
