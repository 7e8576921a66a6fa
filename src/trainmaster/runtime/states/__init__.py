"""States of programs: copied into memory that outlives them, stored behind their training, and put back."""
