"""One module per subcommand; only rpr.cli.app imports them."""
