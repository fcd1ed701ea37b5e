// What both halves demand of their arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>

namespace fused_bias_gelu {

// x, seen as a matrix: bias is as long as a row.
struct Extent {
  int64_t rows;
  int64_t cols;
};

inline Extent check_arguments(const at::Tensor& x, const at::Tensor& bias) {
  TORCH_CHECK(x.dim() >= 1, "fused_bias_gelu: x needs at least 1 dimension");
  TORCH_CHECK(bias.dim() == 1, "fused_bias_gelu: bias needs exactly 1 dimension, not ", bias.dim());
  const int64_t cols = x.size(-1);
  TORCH_CHECK(bias.size(0) == cols, "fused_bias_gelu: bias has ", bias.size(0),
              " elements, but the last dimension of x has ", cols);
  TORCH_CHECK(bias.scalar_type() == x.scalar_type(), "fused_bias_gelu: bias is of type ",
              bias.scalar_type(), ", but x of type ", x.scalar_type());
  TORCH_CHECK(bias.device() == x.device(), "fused_bias_gelu: bias is on ", bias.device(),
              ", but x on ", x.device());
  return {cols == 0 ? 0 : x.numel() / cols, cols};
}

inline Extent check_arguments(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& bias) {
  TORCH_CHECK(grad.sizes() == x.sizes(), "fused_bias_gelu: grad is of shape ", grad.sizes(),
              ", but x of shape ", x.sizes());
  TORCH_CHECK(grad.scalar_type() == x.scalar_type(), "fused_bias_gelu: grad is of type ",
              grad.scalar_type(), ", but x of type ", x.scalar_type());
  TORCH_CHECK(grad.device() == x.device(), "fused_bias_gelu: grad is on ", grad.device(),
              ", but x on ", x.device());
  return check_arguments(x, bias);
}

}  // namespace fused_bias_gelu
