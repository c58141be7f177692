"""Files, locks and text from other people: what every room shares."""
