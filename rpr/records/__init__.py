"""Run records: what is written, how it is read back, and how two records differ. A leaf: it imports no other room."""
