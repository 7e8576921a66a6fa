"""The pages of logs: windows on a log of any size, its lines as they come, and the routes of both."""
