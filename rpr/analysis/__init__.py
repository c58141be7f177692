"""Analysis of trained models: invariants (verification.py) and attention by distance (positions.py)."""
