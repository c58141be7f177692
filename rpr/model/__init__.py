"""The Transformer and its positions: tensors only; no configuration object, no file, no logger."""
