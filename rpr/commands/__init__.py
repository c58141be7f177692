"""One short file for each sub-command; rpr.cli.app alone imports them."""
