// How both kernels walk the matrix: a thread owns one pack of columns and strides over the rows, so
// that it reads its piece of the bias once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

namespace fused_bias_gelu {

constexpr int kThreads = 256;
// Some waves on the largest devices; more blocks would only read the bias more often.
constexpr int64_t kBlocks = 4096;
constexpr int64_t kGridY = 65535;

// N values that are loaded and stored at once.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};

// torch compiles with the implicit conversions of half types switched off.
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }

__device__ inline void narrow(float value, __half& out) { out = __float2half_rn(value); }
__device__ inline void narrow(float value, __nv_bfloat16& out) { out = __float2bfloat16_rn(value); }
__device__ inline void narrow(float value, float& out) { out = value; }
__device__ inline void narrow(double value, double& out) { out = value; }

struct Grid {
  dim3 blocks;
  dim3 threads;
};

inline Grid grid_for(int64_t rows, int64_t packs) {
  int width = 1;
  while (width < kThreads && width < packs) {
    width *= 2;
  }
  const int height = kThreads / width;
  const int64_t across = (packs + width - 1) / width;
  const int64_t down = std::min({(rows + height - 1) / height, std::max<int64_t>(1, kBlocks / across), kGridY});
  return {dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)), dim3(width, height)};
}

// Whether rows can be read in packs of 16 bytes from all of these.
template <typename T, typename... Pointers>
bool fits_packs(int64_t cols, const Pointers*... pointers) {
  constexpr int64_t bytes = 16;
  return cols % (bytes / sizeof(T)) == 0 && ((reinterpret_cast<uintptr_t>(pointers) % bytes == 0) && ...);
}

}  // namespace fused_bias_gelu
