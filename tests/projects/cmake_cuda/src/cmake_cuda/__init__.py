"""A CUDA extension built by CMake."""
