#include <Python.h>

int scale(float *host, int count, float factor);

/* (0, product) on a machine with a GPU, else (error, the number as it was). */
static PyObject *multiply(PyObject *, PyObject *arguments) {
  float value, factor;
  if (!PyArg_ParseTuple(arguments, "ff", &value, &factor)) return nullptr;
  int error = scale(&value, 1, factor);
  return Py_BuildValue("if", error, value);
}

static PyMethodDef methods[] = {{"multiply", multiply, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
