"""From text to batches: corpus.py opens the splits of a corpus of pairs (pairs.py), documents.py those of a corpus of
documents; build.py writes the token cache (encode.py runs in its workers.py) and cache.py opens it; plan.py and
batches.py form batches, windows.py those of documents.
"""
