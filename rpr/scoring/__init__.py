"""From weights to scores of test sets, with their intervals and paired tests between runs."""
