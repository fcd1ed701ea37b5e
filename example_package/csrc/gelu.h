// The formula, once, for both halves. Included by nvcc: nothing of torch in here.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define FBG_HOST_DEVICE __host__ __device__ inline
#else
#define FBG_HOST_DEVICE inline
#endif

namespace fused_bias_gelu {

// sqrt(2 / pi) and the cubic term of the tanh approximation.
constexpr double kBeta = 0.79788456080286535588;
constexpr double kKappa = 0.044715;

template <typename T>
FBG_HOST_DEVICE T gelu_tanh(T u) {
  return std::tanh(T(kBeta) * (u + T(kKappa) * u * u * u));
}

template <typename T>
FBG_HOST_DEVICE T gelu(T u) {
  return T(0.5) * u * (T(1) + gelu_tanh(u));
}

template <typename T>
FBG_HOST_DEVICE T gelu_gradient(T u) {
  const T t = gelu_tanh(u);
  const T slope = T(kBeta) * (T(1) + T(3 * kKappa) * u * u);
  return T(0.5) * (T(1) + t) + T(0.5) * u * (T(1) - t * t) * slope;
}

}  // namespace fused_bias_gelu
