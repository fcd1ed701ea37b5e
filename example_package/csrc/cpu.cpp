// The CPU half.

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "arguments.h"
#include "gelu.h"

namespace fused_bias_gelu {
namespace {

// Elements that are worth a thread: torch's own figure for element-wise operators.
constexpr int64_t kGrain = 32768;

// Calls body(first, last) on ranges of rows that cover all of them.
template <typename Body>
void parallel_rows(const Extent& extent, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, extent.cols));
  at::parallel_for(0, extent.rows, grain, body);
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& bias) {
  const Extent extent = check_arguments(x, bias);
  const at::Tensor x_rows = x.contiguous();
  const at::Tensor bias_row = bias.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "fused_bias_gelu", [&] {
    using math_t = at::opmath_type<scalar_t>;
    const scalar_t* in = x_rows.const_data_ptr<scalar_t>();
    const scalar_t* b = bias_row.const_data_ptr<scalar_t>();
    scalar_t* result = out.mutable_data_ptr<scalar_t>();
    parallel_rows(extent, [=](int64_t first, int64_t last) {
      for (int64_t i = first * extent.cols; i < last * extent.cols; i += extent.cols) {
        for (int64_t j = 0; j < extent.cols; ++j) {
          result[i + j] = static_cast<scalar_t>(gelu(math_t(in[i + j]) + math_t(b[j])));
        }
      }
    });
  });
  return out;
}

at::Tensor backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& bias) {
  const Extent extent = check_arguments(grad, x, bias);
  const at::Tensor grad_rows = grad.contiguous();
  const at::Tensor x_rows = x.contiguous();
  const at::Tensor bias_row = bias.contiguous();
  at::Tensor grad_x = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "fused_bias_gelu", [&] {
    using math_t = at::opmath_type<scalar_t>;
    const scalar_t* g = grad_rows.const_data_ptr<scalar_t>();
    const scalar_t* in = x_rows.const_data_ptr<scalar_t>();
    const scalar_t* b = bias_row.const_data_ptr<scalar_t>();
    scalar_t* result = grad_x.mutable_data_ptr<scalar_t>();
    parallel_rows(extent, [=](int64_t first, int64_t last) {
      for (int64_t i = first * extent.cols; i < last * extent.cols; i += extent.cols) {
        for (int64_t j = 0; j < extent.cols; ++j) {
          const math_t slope = gelu_gradient(math_t(in[i + j]) + math_t(b[j]));
          result[i + j] = static_cast<scalar_t>(math_t(g[i + j]) * slope);
        }
      }
    });
  });
  return grad_x;
}

}  // namespace
}  // namespace fused_bias_gelu

TORCH_LIBRARY_IMPL(fused_bias_gelu, CPU, m) {
  m.impl("forward", &fused_bias_gelu::forward);
  m.impl("backward", &fused_bias_gelu::backward);
}
