"""A trained model to hypotheses: engine.py (PyTorch) or ctranslate2.py; corpus.py and translator.py use either."""
