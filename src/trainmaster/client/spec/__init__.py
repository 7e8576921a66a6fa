"""From files, flags and settings to one job."""
