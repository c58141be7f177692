"""Text to pieces to batches: synthetic.py and corpus.py give sentence pairs, vocabulary.py pieces, cache.py stores
them, batches.py groups them.
"""
