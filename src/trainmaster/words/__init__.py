"""Statuses, events and failures in words, for commands and pages alike."""
