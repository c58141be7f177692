"""From text to batches: corpus.py lists the files of a corpus (files.py), pairs.py and documents.py open its splits;
build.py writes the token cache and cache.py opens it; plan.py and batches.py form batches, windows.py windows.
"""
