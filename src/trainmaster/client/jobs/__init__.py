"""The jobs of a user: where they are, how they are named, listed, ended and removed."""
