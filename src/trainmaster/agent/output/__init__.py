"""The output of programs: captured, kept, shipped, followed."""
