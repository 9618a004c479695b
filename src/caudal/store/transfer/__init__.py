"""Bytes on their way over HTTP: ranges side by side, tried again, and found again after a kill."""
