"""One short file for each sub-command; rpr.app alone imports them."""
