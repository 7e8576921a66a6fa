"""Folders of files under a URL, on any storage."""
