#pragma once

/* The version of the CUDA runtime and of cuSPARSE whose headers this was compiled with. */
void compiled_with(int *runtime, int *sparse);

/* Multiply on the GPU, in place; returns a cudaError_t. */
int scale(float *host, int count, float factor);
