"""`tm ui`: the pages of many jobs, served from the user's own machine."""
