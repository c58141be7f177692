"""From a corpus to batches: files.py finds and reads files; corpora.py has its pairs or documents by split; cache.py
encodes them with a vocabulary; batches.py forms batches of pairs, or of windows of documents.
"""
