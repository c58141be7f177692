"""From a corpus to batches: corpus.py says which files, files.py reads them, pairs.py and documents.py what they hold;
cache.py encodes it with a vocabulary; batches.py forms batches of pairs, or of the windows of windows.py.
"""
