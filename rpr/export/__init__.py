"""Exporting a run for other programs: writing.py checks the export against the run (parity.py) before it appears."""
