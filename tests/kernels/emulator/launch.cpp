// One kernel of kernels/src as a shared library: KERNEL_TEXT is its translated source (emulated_gpu.py), KERNEL its name.
#include "primitives.h"

#include KERNEL_TEXT

namespace {

// A kernel's arguments come in cells of 8 bytes, as the driver gets them.
template <class... Parameters, size_t... Places>
void call(void (*kernel)(Parameters...), const uint64_t* cells, std::index_sequence<Places...>) {
  kernel(machine::from_bits<Parameters>(cells[Places])...);
}

template <class... Parameters>
void call(void (*kernel)(Parameters...), const uint64_t* cells) {
  call(kernel, cells, std::index_sequence_for<Parameters...>());
}

}  // namespace

// Returns an error, or an empty text.
extern "C" const char* run(const unsigned* grid, unsigned threads, unsigned shared_bytes, const uint64_t* cells,
                           unsigned seed) {
  static std::string error;
  error = machine::run({grid[0], grid[1], grid[2]}, threads, shared_bytes, seed, [=] { call(KERNEL, cells); });
  return error.c_str();
}
