"""From run records to tables beside the paper's, plots and one page; knows no torch, no Lightning and no W&B."""
