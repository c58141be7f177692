"""Run records: how they are written, read and compared."""
