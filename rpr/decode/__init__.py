"""Decoding with a trained model: engine.py searches and scores, translator.py and sampling.py read and write text."""
