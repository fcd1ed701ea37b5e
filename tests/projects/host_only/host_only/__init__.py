from ._C import answer

__all__ = ["answer"]
