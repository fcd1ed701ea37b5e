"""What the compiled half leaves to Python: shapes for tracing, and the backward formula."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# After torch, whose libraries it links to. Loading it registers torch.ops.fused_bias_gelu.
from fused_bias_gelu import _C  # noqa: F401


def fused_bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Return ``gelu(x + bias, approximate="tanh")``, computed in one pass.

    Args:
        x: At least one dimension; float16, bfloat16, float32 or float64. One that is not
            contiguous is copied first.
        bias: One dimension, as long as the last one of ``x``; of the same type and device.

    Returns:
        A contiguous tensor of the shape of ``x``. It can be differentiated once.
    """
    out: Tensor = torch.ops.fused_bias_gelu.forward(x, bias)
    return out


def has_cuda_kernels() -> bool:
    """Whether this build holds the CUDA half (a device may be missing all the same)."""
    return torch._C._dispatch_has_kernel_for_dispatch_key("fused_bias_gelu::forward", "CUDA")


def _forward_fake(x: Tensor, bias: Tensor) -> Tensor:
    torch._check(x.dim() >= 1 and bias.dim() == 1, lambda: "x needs 1 dimension or more, bias exactly 1")
    torch._check(bias.shape[0] == x.shape[-1], lambda: "bias must be as long as the last dimension of x")
    return x.new_empty(x.shape)


def _backward_fake(grad: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    torch._check(grad.shape == x.shape, lambda: "grad must have the shape of x")
    return x.new_empty(x.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    # x + bias is cheaper to compute again than to keep.
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    x, bias = ctx.saved_tensors
    grad_x: Tensor = torch.ops.fused_bias_gelu.backward(grad, x, bias)
    return grad_x, _sum_of_rows(grad_x) if ctx.needs_input_grad[1] else None


def _sum_of_rows(matrix: Tensor) -> Tensor:
    # Left to torch: its reductions are tuned, and deterministic. In half precision it may add up in
    # half precision (on the CPU, 70,000 rows of bfloat16 come out 4% off), so the sum is widened.
    wide = torch.promote_types(matrix.dtype, torch.float32)
    rows = list(range(matrix.dim()))
    return matrix.unsqueeze(0).sum(dim=rows, dtype=wide).to(matrix.dtype)


torch.library.register_fake("fused_bias_gelu::forward", _forward_fake)
torch.library.register_fake("fused_bias_gelu::backward", _backward_fake)
torch.library.register_autograd("fused_bias_gelu::forward", _backward, setup_context=_setup_context)
