"""The Transformer and its positions: tensors only (torch and the standard library), no configuration object, no file, no logger."""
