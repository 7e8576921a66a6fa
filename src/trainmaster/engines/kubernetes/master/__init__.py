"""The master's side: pods asked for, watched and taken away."""
