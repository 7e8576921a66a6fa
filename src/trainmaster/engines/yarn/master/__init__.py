"""The master's side: containers asked for, watched and given back."""
