"""Decoding with a trained model: torch_engine.py or ctranslate2.py searches; translator.py uses either."""
