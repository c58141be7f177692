"""From text to batches: corpus.py reads sentence pairs (from synthetic.py, rpr.tasks, line_files.py or hub.py);
vocabulary.py tokenises them; build.py writes the token cache (encode.py runs in its workers.py) and cache.py opens it;
plan.py and batches.py form batches.
"""
