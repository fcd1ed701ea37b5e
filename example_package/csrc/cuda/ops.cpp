// The host side of the CUDA half; see launch.h for why the host compiler gets it and not nvcc.

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torch/library.h>

#include "../arguments.h"
#include "launch.h"

namespace fused_bias_gelu {
namespace {

// CUDA's own name for a type of torch.
template <typename T>
struct Native {
  using type = T;
};
template <>
struct Native<at::Half> {
  using type = __half;
};
template <>
struct Native<at::BFloat16> {
  using type = __nv_bfloat16;
};

template <typename T>
const auto* input(const at::Tensor& tensor) {
  return reinterpret_cast<const typename Native<T>::type*>(tensor.const_data_ptr<T>());
}

template <typename T>
auto* output(at::Tensor& tensor) {
  return reinterpret_cast<typename Native<T>::type*>(tensor.mutable_data_ptr<T>());
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& bias) {
  const Extent extent = check_arguments(x, bias);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor x_rows = x.contiguous();
  const at::Tensor bias_row = bias.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "fused_bias_gelu", [&] {
    if (extent.rows > 0) {
      C10_CUDA_CHECK(launch_forward(input<scalar_t>(x_rows), input<scalar_t>(bias_row), output<scalar_t>(out),
                                    extent.rows, extent.cols, at::cuda::getCurrentCUDAStream()));
    }
  });
  return out;
}

at::Tensor backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& bias) {
  const Extent extent = check_arguments(grad, x, bias);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor grad_rows = grad.contiguous();
  const at::Tensor x_rows = x.contiguous();
  const at::Tensor bias_row = bias.contiguous();
  at::Tensor grad_x = at::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "fused_bias_gelu", [&] {
    if (extent.rows > 0) {
      C10_CUDA_CHECK(launch_backward(input<scalar_t>(grad_rows), input<scalar_t>(x_rows),
                                     input<scalar_t>(bias_row), output<scalar_t>(grad_x), extent.rows,
                                     extent.cols, at::cuda::getCurrentCUDAStream()));
    }
  });
  return grad_x;
}

}  // namespace
}  // namespace fused_bias_gelu

TORCH_LIBRARY_IMPL(fused_bias_gelu, CUDA, m) {
  m.impl("forward", &fused_bias_gelu::forward);
  m.impl("backward", &fused_bias_gelu::backward);
}
