"""Text to pieces to batches: corpus.py gives sentence pairs (from synthetic.py, line_files.py or hub.py), vocabulary.py
pieces; build.py writes them, encode.py being what its workers.py do, and cache.py finds them again; plan.py and
batches.py group them.
"""
