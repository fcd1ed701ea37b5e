"""Build PyTorch CUDA extensions safely and fast."""

__version__ = "0.1.0"
