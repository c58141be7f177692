"""Exporting a run for other programs: writing.py compares the export with the run before it appears."""
