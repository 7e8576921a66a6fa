"""The master's side of YARN: containers are asked for, watched and given back."""
