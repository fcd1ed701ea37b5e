// The seam between the two compilers: kernels are launched through these, and torch's headers stay
// on the host compiler's side of it.
//
// Why: they cost nvcc far more than they cost g++, and the kernels need none of them. Measured with
// CUDA 13.0, torch 2.14, -O3, one architecture, for an empty source with these includes:
//
//   torch/extension.h                             nvcc  141 CPU s  2.9 GiB    g++  42 CPU s  1.5 GiB
//   torch/library.h + ATen/cuda/CUDAContext.h     nvcc   37 CPU s  1.1 GiB    g++   9 CPU s  0.5 GiB
//   ATen/core/Tensor.h + ATen/cuda/CUDAContext.h  nvcc   21 CPU s  0.7 GiB    g++   6 CPU s  0.4 GiB
//   cuda_fp16.h + cuda_bf16.h                     nvcc    3 CPU s  0.2 GiB
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fused_bias_gelu {

// Row-major and contiguous: x, out, grad and grad_x are rows x cols (neither is 0), bias is cols.
// Defined for __half, __nv_bfloat16, float and double. Asynchronous, on the current device.
template <typename T>
cudaError_t launch_forward(const T* x, const T* bias, T* out, int64_t rows, int64_t cols, cudaStream_t stream);

template <typename T>
cudaError_t launch_backward(const T* grad, const T* x, const T* bias, T* grad_x, int64_t rows, int64_t cols,
                            cudaStream_t stream);

}  // namespace fused_bias_gelu
