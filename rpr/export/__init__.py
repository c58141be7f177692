"""Runs as folders for other programs: write.py proves a folder equal to the run before it appears; read.py opens it."""
