#include <cuda_runtime.h>

__global__ static void multiply(float *data, int count, float factor) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) data[index] *= factor;
}

int scale(float *host, int count, float factor) {
  float *data = nullptr;
  size_t bytes = count * sizeof(float);
  cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaSuccess) error = cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice);
  if (error == cudaSuccess) {
    multiply<<<(count + 255) / 256, 256>>>(data, count, factor);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaMemcpy(host, data, bytes, cudaMemcpyDeviceToHost);
  cudaFree(data);
  return error;
}
