"""Decoding with a trained model: torch_engine.py or ctranslate2.py searches; corpus.py and translator.py use either."""
