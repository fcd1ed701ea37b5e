import torch  # noqa: F401  (brings the libraries that the extension is linked to)

from ._C import multiply, versions

__all__ = ["multiply", "versions"]
