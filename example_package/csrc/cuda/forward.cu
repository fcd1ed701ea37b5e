#include "../gelu.h"
#include "launch.h"
#include "tiles.cuh"

namespace fused_bias_gelu {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const Pack<T, N>* __restrict__ x, const Pack<T, N>* __restrict__ bias,
                   Pack<T, N>* __restrict__ out, int64_t rows, int64_t packs) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= packs) {
    return;
  }
  const Pack<T, N> b = bias[column];
  const int64_t step = int64_t{gridDim.y} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < rows; row += step) {
    const Pack<T, N> in = x[row * packs + column];
    Pack<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      narrow(gelu(widen(in.values[i]) + widen(b.values[i])), result.values[i]);
    }
    out[row * packs + column] = result;
  }
}

template <int N, typename T>
cudaError_t launch(const T* x, const T* bias, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  const Grid grid = grid_for(rows, cols / N);
  forward_kernel<T, N><<<grid.blocks, grid.threads, 0, stream>>>(
      reinterpret_cast<const Pack<T, N>*>(x), reinterpret_cast<const Pack<T, N>*>(bias),
      reinterpret_cast<Pack<T, N>*>(out), rows, cols / N);
  return cudaGetLastError();
}

}  // namespace

template <typename T>
cudaError_t launch_forward(const T* x, const T* bias, T* out, int64_t rows, int64_t cols, cudaStream_t stream) {
  if (fits_packs<T>(cols, x, bias, out)) {
    return launch<16 / sizeof(T)>(x, bias, out, rows, cols, stream);
  }
  return launch<1>(x, bias, out, rows, cols, stream);
}

#define FBG_INSTANTIATE(T) \
  template cudaError_t launch_forward(const T*, const T*, T*, int64_t, int64_t, cudaStream_t)
FBG_INSTANTIATE(__half);
FBG_INSTANTIATE(__nv_bfloat16);
FBG_INSTANTIATE(float);
FBG_INSTANTIATE(double);
#undef FBG_INSTANTIATE

}  // namespace fused_bias_gelu
