"""Atomic files, locks, and the escaping of untrusted text."""
