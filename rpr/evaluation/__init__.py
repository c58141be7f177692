"""From a trained model to figures: translate.py gives hypotheses, bleu.py scores them."""
