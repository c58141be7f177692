"""What a trained model does: its invariants (verification.py) and its attention by distance (positions.py)."""
