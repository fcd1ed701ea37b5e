/* Many system toolkits lack cuSPARSE: torch's own wheels have it. */
#include <cuda_runtime.h>
#include <cusparse.h>

#include "tiny.h"

void compiled_with(int *runtime, int *sparse) {
  *runtime = CUDART_VERSION;
  *sparse = CUSPARSE_VERSION;
}
