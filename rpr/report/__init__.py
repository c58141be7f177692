"""From run records to tables with the paper's figures, plots and one page; imports no torch, Lightning or W&B."""
