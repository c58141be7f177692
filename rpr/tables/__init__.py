"""Tables of typed columns, and their text in every format."""
