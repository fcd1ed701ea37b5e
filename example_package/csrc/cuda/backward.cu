#include "../gelu.h"
#include "launch.h"
#include "tiles.cuh"

namespace fused_bias_gelu {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const Pack<T, N>* __restrict__ grad, const Pack<T, N>* __restrict__ x,
                    const Pack<T, N>* __restrict__ bias, Pack<T, N>* __restrict__ grad_x, int64_t rows,
                    int64_t packs) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= packs) {
    return;
  }
  const Pack<T, N> b = bias[column];
  const int64_t step = int64_t{gridDim.y} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < rows; row += step) {
    const Pack<T, N> g = grad[row * packs + column];
    const Pack<T, N> in = x[row * packs + column];
    Pack<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto slope = gelu_gradient(widen(in.values[i]) + widen(b.values[i]));
      narrow(widen(g.values[i]) * slope, result.values[i]);
    }
    grad_x[row * packs + column] = result;
  }
}

template <int N, typename T>
cudaError_t launch(const T* grad, const T* x, const T* bias, T* grad_x, int64_t rows, int64_t cols,
                   cudaStream_t stream) {
  const Grid grid = grid_for(rows, cols / N);
  backward_kernel<T, N><<<grid.blocks, grid.threads, 0, stream>>>(
      reinterpret_cast<const Pack<T, N>*>(grad), reinterpret_cast<const Pack<T, N>*>(x),
      reinterpret_cast<const Pack<T, N>*>(bias), reinterpret_cast<Pack<T, N>*>(grad_x), rows, cols / N);
  return cudaGetLastError();
}

}  // namespace

template <typename T>
cudaError_t launch_backward(const T* grad, const T* x, const T* bias, T* grad_x, int64_t rows, int64_t cols,
                            cudaStream_t stream) {
  if (fits_packs<T>(cols, grad, x, bias, grad_x)) {
    return launch<16 / sizeof(T)>(grad, x, bias, grad_x, rows, cols, stream);
  }
  return launch<1>(grad, x, bias, grad_x, rows, cols, stream);
}

#define FBG_INSTANTIATE(T) \
  template cudaError_t launch_backward(const T*, const T*, const T*, T*, int64_t, int64_t, cudaStream_t)
FBG_INSTANTIATE(__half);
FBG_INSTANTIATE(__nv_bfloat16);
FBG_INSTANTIATE(float);
FBG_INSTANTIATE(double);
#undef FBG_INSTANTIATE

}  // namespace fused_bias_gelu
