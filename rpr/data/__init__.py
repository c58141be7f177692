"""Text to pieces to batches: corpus.py gives sentence pairs (from synthetic.py, line_files.py or hub.py), vocabulary.py
pieces, cache.py stores them, batches.py groups them.
"""
