"""What programs print: captured, kept, shipped, followed."""
