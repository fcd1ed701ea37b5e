"""The operator against torch's own GELU, on the CPU always and on a CUDA device where there is one."""

from __future__ import annotations

import pytest
import torch
from fused_bias_gelu import fused_bias_gelu, has_cuda_kernels
from torch import Tensor
from torch.nn.functional import gelu


def _cuda() -> object:
    reason = ""
    if not has_cuda_kernels():
        reason = "built without its CUDA half"
    elif not torch.cuda.is_available():
        reason = "no CUDA device"
    return pytest.param("cuda", marks=pytest.mark.skipif(bool(reason), reason=reason))


on_each_device = pytest.mark.parametrize("device", ["cpu", _cuda()])

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
on_each_dtype = pytest.mark.parametrize("dtype", TOLERANCE)

# Rows that fit 16-byte packs and rows that do not; one row, one column, more rows than blocks; empty ones.
SHAPES = [(8,), (7,), (1, 1), (3, 5), (4, 16), (2, 3, 64), (300, 24), (70_000, 1), (5, 4099), (0, 8), (3, 0)]


def reference(x: Tensor, bias: Tensor) -> Tensor:
    return gelu(x.double() + bias.double(), approximate="tanh")


def arguments(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, requires_grad: bool = False
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        values = 2 * torch.randn(size, generator=generator, dtype=torch.float64)
        return values.to(device, dtype).requires_grad_(requires_grad)

    return draw(*shape), draw(shape[-1])


def assert_close(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


@on_each_device
@on_each_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    x, bias = arguments(shape, dtype, device)
    out = fused_bias_gelu(x, bias)
    assert (out.shape, out.dtype, out.device) == (x.shape, x.dtype, x.device)
    assert_close(out, reference(x, bias))


@on_each_device
@on_each_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    x, bias = arguments(shape, dtype, device, requires_grad=True)
    weight = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).reshape(shape).to(device, dtype)
    torch.autograd.backward(fused_bias_gelu(x, bias), weight)
    x64, bias64 = (t.detach().double().requires_grad_() for t in (x, bias))
    torch.autograd.backward(reference(x64, bias64), weight.double())
    assert x.grad is not None and x64.grad is not None and bias.grad is not None
    assert_close(x.grad, x64.grad)
    # The sum of the rounded gradients, which is what a matrix product would make of them too.
    assert_close(bias.grad, x.grad.double().sum_to_size(bias.shape))


@on_each_device
def test_gradcheck(device: str) -> None:
    assert torch.autograd.gradcheck(fused_bias_gelu, arguments((3, 4, 6), torch.float64, device, True))


@on_each_device
@pytest.mark.parametrize("wanted", ["x", "bias", "neither"])
def test_gradients_only_where_wanted(wanted: str, device: str) -> None:
    x, bias = arguments((4, 6), torch.float64, device)
    x.requires_grad_(wanted == "x")
    bias.requires_grad_(wanted == "bias")
    out = fused_bias_gelu(x, bias)
    assert out.requires_grad == (wanted != "neither")
    if out.requires_grad:
        torch.autograd.backward(out.sum())
    assert (x.grad is not None, bias.grad is not None) == (wanted == "x", wanted == "bias")


# opcheck itself looks at the gradient of its copies of the arguments, which are no leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@on_each_device
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck(requires_grad: bool, device: str) -> None:
    x, bias = arguments((3, 6, 6), torch.float32, device, requires_grad)
    transposed = x.detach().mT.requires_grad_(requires_grad)
    torch.library.opcheck(torch.ops.fused_bias_gelu.forward.default, (x, bias))
    torch.library.opcheck(torch.ops.fused_bias_gelu.forward.default, (transposed, bias))


@on_each_device
def test_opcheck_of_the_backward(device: str) -> None:
    x, bias = arguments((3, 4, 6), torch.float32, device)
    torch.library.opcheck(torch.ops.fused_bias_gelu.backward.default, (torch.ones_like(x), x, bias))


@on_each_device
@on_each_dtype
def test_not_contiguous(dtype: torch.dtype, device: str) -> None:
    x, _ = arguments((6, 8, 10), dtype, device)
    _, long_bias = arguments((6 * 3,), dtype, device)
    bias = long_bias[::3]
    out = fused_bias_gelu(x.permute(2, 1, 0), bias)
    assert out.is_contiguous()
    assert_close(out, reference(x.permute(2, 1, 0), bias))


@on_each_device
def test_not_aligned(device: str) -> None:
    # Contiguous and of a length that fits packs, but 4 bytes off the 16-byte grid.
    flat, bias = arguments((4 * 8 + 1,), torch.float32, device)
    x, bias = flat[1:].view(4, 8), bias[1:9]
    assert x.is_contiguous()
    assert_close(fused_bias_gelu(x, bias), reference(x, bias))


@on_each_device
def test_far_values(device: str) -> None:
    x = torch.tensor([-1e4, -30.0, 0.0, 30.0, 1e4], device=device)
    assert_close(fused_bias_gelu(x, torch.zeros_like(x)), x.clamp(min=0))


@on_each_device
def test_compiles_into_one_graph(device: str) -> None:
    def model(x: Tensor, bias: Tensor) -> Tensor:
        return 2 * fused_bias_gelu(x, bias)

    x, bias = arguments((5, 8), torch.float32, device, requires_grad=True)
    # aot_eager traces forward and backward as inductor would, but needs no compiler.
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    actual = torch.autograd.grad(compiled(x, bias).sum(), (x, bias))
    expected = torch.autograd.grad(model(x, bias).sum(), (x, bias))
    torch.testing.assert_close(actual, expected)


@on_each_device
@pytest.mark.parametrize(
    ("x", "bias", "message"),
    [
        (torch.ones(()), torch.ones(1), "x needs at least 1 dimension"),
        (torch.ones(2, 3), torch.ones(1, 3), "bias needs exactly 1 dimension, not 2"),
        (torch.ones(2, 3), torch.ones(2), "bias has 2 elements, but the last dimension of x has 3"),
        (torch.ones(2, 3), torch.ones(3).double(), "bias is of type Double, but x of type Float"),
        (torch.ones(2, 3).int(), torch.ones(3).int(), "not implemented for 'Int'"),
    ],
    ids=["scalar x", "bias of 2 dimensions", "lengths", "types", "integers"],
)
def test_refused(x: Tensor, bias: Tensor, message: str, device: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        fused_bias_gelu(x.to(device), bias.to(device))


@pytest.mark.parametrize(
    ("x_shape", "bias_shape"),
    [((), (1,)), ((2, 3), (1, 3)), ((2, 3), (2,))],
    ids=["scalar", "dimensions", "lengths"],
)
def test_tracing_refuses_too(x_shape: tuple[int, ...], bias_shape: tuple[int, ...]) -> None:
    x, bias = torch.empty(x_shape, device="meta"), torch.empty(bias_shape, device="meta")
    with pytest.raises(RuntimeError, match=r"must be as long|exactly 1"):
        fused_bias_gelu(x, bias)


@on_each_device
def test_backward_refuses_another_shape(device: str) -> None:
    x, bias = arguments((4, 6), torch.float32, device)
    with pytest.raises(RuntimeError, match=r"grad is of shape \[4, 5\], but x of shape \[4, 6\]"):
        torch.ops.fused_bias_gelu.backward(x[:, :5], x, bias)


@pytest.mark.parametrize("device", [_cuda()])
def test_one_device(device: str) -> None:
    x, bias = arguments((4, 6), torch.float32, device)
    with pytest.raises(RuntimeError, match="bias is on cpu, but x on cuda:0"):
        fused_bias_gelu(x, bias.cpu())


@pytest.mark.parametrize("device", [_cuda()])
def test_current_stream(device: str) -> None:
    x, bias = arguments((4096, 1024), torch.float32, device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Still asleep when it is launched: on another stream the operator would read old values.
        torch.cuda._sleep(50_000_000)
        x.add_(1)
        out = fused_bias_gelu(x, bias)
    stream.synchronize()
    assert_close(out, reference(x, bias))
