"""GELU(x + bias) as one operator, on the CPU and on CUDA devices, with autograd and torch.compile."""

from __future__ import annotations

from fused_bias_gelu._ops import fused_bias_gelu, has_cuda_kernels

__all__ = ["fused_bias_gelu", "has_cuda_kernels"]
