// The operators' schemas, and the module that Python imports.

#include <Python.h>

#include <torch/library.h>

TORCH_LIBRARY(fused_bias_gelu, m) {
  m.def("forward(Tensor x, Tensor bias) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("backward(Tensor grad, Tensor x, Tensor bias) -> Tensor", {at::Tag::pt2_compliant_tag});
}

// An empty module: importing it loads this library, whose static initialisers register the operators,
// so nothing of pybind11 is needed. Nor is the limited API (abi3): it would spare a build for each
// Python, but free-threaded ones have none, and setuptools refuses py_limited_api there.
PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
      {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
      {0, nullptr},
  };
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "_C", nullptr, 0, nullptr, slots, nullptr, nullptr, nullptr,
  };
  return PyModuleDef_Init(&definition);
}
