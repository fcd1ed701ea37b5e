"""A C extension as setuptools alone builds it: neither torch nor CUDA."""

from setuptools import Extension, setup

setup(packages=["host_only"], ext_modules=[Extension("host_only._C", ["csrc/module.c"])])
