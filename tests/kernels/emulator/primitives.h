// What the kernels' sources write as machine instructions (PTX), in C++: the functions of common.cuh, wgmma.cuh and
// paper_decode.cu that contain `asm`. Asynchronous copies and products are computed early or late, at random, and where
// a copy will arrive lies NaN until then, so that a missing wait is found.
#pragma once
#include "machine.h"

typedef unsigned short word16;
typedef unsigned long long address_t;
struct TensorMap;

namespace machine {

inline float from_f16(word16 x) { return static_cast<float>(from_bits<_Float16>(x)); }
inline word16 to_f16(float x) { return static_cast<word16>(to_bits(static_cast<_Float16>(x))); }

inline float from_bf16(word16 x) { return from_bits<float>(static_cast<uint64_t>(x) << 16); }

// To the nearest, and of two to the even one.
inline word16 to_bf16(float x) {
  uint32_t bits = static_cast<uint32_t>(to_bits(x));
  if (std::isnan(x)) return 0x7fff;
  return static_cast<word16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A byte of e4m3: 4 bits of exponent, 3 of mantissa, no infinity.
inline float from_e4m3(unsigned byte) {
  int exponent = byte >> 3 & 15, mantissa = byte & 7;
  float size = exponent ? std::ldexp(8.0f + mantissa, exponent - 10) : std::ldexp(static_cast<float>(mantissa), -9);
  if ((byte & 0x7f) == 0x7f) size = NAN;
  return byte & 0x80 ? -size : size;
}

// To the nearest, of two to the even one; values beyond 448 to 448.
inline unsigned to_e4m3(float x) {
  unsigned sign = std::signbit(x) ? 0x80 : 0, best = 0;
  if (std::isnan(x)) return 0x7f;
  for (unsigned code = 1; code < 0x7f; code++) {
    float nearer = std::fabs(from_e4m3(code) - std::fabs(x)) - std::fabs(from_e4m3(best) - std::fabs(x));
    if (nearer < 0 || (nearer == 0 && code % 2 == 0)) best = code;
  }
  return sign | best;
}

inline char* in_shared(unsigned address) {
  if (address >= SHARED_BYTES + STATIC_BYTES) fail("an address outside shared memory");
  return block().shared + address;
}

template <class T>
T load(const void* place) {
  T value;
  std::memcpy(&value, place, sizeof(T));
  return value;
}

constexpr unsigned char NOTHING = 0xff;  // bytes of NaN in every type

// Copies now or later: when the thread waits.
inline void copy_later(char* to, const void* from, int bytes) {
  std::memset(to, NOTHING, 16);
  thread().copies.push_back([=] {
    std::memset(to, 0, 16);
    std::memcpy(to, from, bytes);
  });
}

// 128-byte swizzling of addresses: bits 4 to 6 are changed by bits 7 to 9.
inline unsigned swizzled(unsigned address) { return address ^ ((address >> 7 & 7) << 4); }

// Memory from `origin` on as rows of `row_bytes`, in boxes of `box_rows` rows by 128 bytes: what the tests encode.
struct MapOfRows {
  const char* origin;
  int64_t row_bytes, box_rows;
};

}  // namespace machine

inline unsigned shared_address(const void* place) {
  return static_cast<unsigned>(static_cast<const char*>(place) - machine::block().shared);
}

#if BF16
inline float to_float(word16 x) { return machine::from_bf16(x); }
inline word16 to_word(float x) { return machine::to_bf16(x); }
#else
inline float to_float(word16 x) { return machine::from_f16(x); }
inline word16 to_word(float x) { return machine::to_f16(x); }
#endif

inline unsigned pack(float low, float high) { return to_word(low) | static_cast<unsigned>(to_word(high)) << 16; }

inline unsigned widen(unsigned pair) {
  return pack(machine::from_e4m3(pair & 0xff), machine::from_e4m3(pair >> 8 & 0xff));
}

inline unsigned narrow(unsigned pair, float scale) {
  float low = to_float(static_cast<word16>(pair)), high = to_float(static_cast<word16>(pair >> 16));
  return machine::to_e4m3(low / scale) | machine::to_e4m3(high / scale) << 8;
}

inline float fast_exp2(float x) { return std::exp2(x); }

// c[16x8] += a[16x16] b[16x8], fragments as common.cuh says.
inline void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  auto both = [](unsigned x, unsigned y) { return x | static_cast<uint64_t>(y) << 32; };
  auto rows = machine::together(both(a0, a1), "mma"), more = machine::together(both(a2, a3), "mma");
  auto columns = machine::together(both(b0, b1), "mma");
  unsigned lane = machine::lane();
  auto half = [](uint64_t word, int i) { return to_float(static_cast<word16>(word >> 16 * i)); };
  for (int i = 0; i < 4; i++) {
    unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; k++) {
      uint64_t a = (k < 8 ? rows : more)[row * 4 + k % 8 / 2], b = columns[column * 4 + k % 8 / 2];
      sum += half(a, i / 2 * 2 + k % 2) * half(b, k / 8 * 2 + k % 2);
    }
    c[i] += sum;
  }
}

inline unsigned transpose8x8(unsigned pair) {
  auto rows = machine::together(pair, "movmatrix");
  unsigned column = machine::lane() / 4, row = machine::lane() % 4 * 2;
  auto at = [&](unsigned r) { return static_cast<unsigned>(rows[r * 4 + column / 2] >> 16 * (column % 2) & 0xffff); };
  return at(row) | at(row + 1) << 16;
}

inline void load_matrices(unsigned (&r)[4], unsigned address) {
  auto rows = machine::together(address, "ldmatrix");
  for (int i = 0; i < 4; i++) {
    unsigned row = static_cast<unsigned>(rows[i * 8 + machine::lane() / 4]);
    r[i] = machine::load<unsigned>(machine::in_shared(row + machine::lane() % 4 * 4));
  }
}

inline void load_matrices_transposed(unsigned (&r)[4], unsigned address) {
  load_matrices(r, address);
  for (unsigned& pair : r) pair = transpose8x8(pair);
}

inline uint4 load_shared16(unsigned shared) { return machine::load<uint4>(machine::in_shared(shared)); }
inline uint2 load_shared8(unsigned shared) { return machine::load<uint2>(machine::in_shared(shared)); }
inline uint4 stream16(address_t p) { return machine::load<uint4>(reinterpret_cast<const void*>(p)); }
inline uint2 stream8(address_t p) { return machine::load<uint2>(reinterpret_cast<const void*>(p)); }
inline unsigned stream4(address_t p) { return machine::load<unsigned>(reinterpret_cast<const void*>(p)); }
inline uint4 load16_in_order(const void* p) { return machine::load<uint4>(p); }
inline uint2 load8_in_order(const void* p) { return machine::load<uint2>(p); }

inline int add_in_order(int* place, int value) { return atomicAdd(place, value); }

inline void copy_async(unsigned shared, const void* global, int bytes = 16) {
  machine::copy_later(machine::in_shared(shared), global, bytes);
}

inline void commit_copies() {}

inline void wait_copies() {
  for (auto& copy : machine::thread().copies) copy();
  machine::thread().copies.clear();
}

// Barriers in shared memory, by their addresses.
inline void init_barrier(unsigned barrier, int arrivals) {
  machine::block().barriers[barrier] = {.expected = arrivals, .missing = arrivals};
}

inline void publish_barriers() {}
inline void publish_shared() {}

namespace machine {

inline SharedBarrier& barrier_at(unsigned address) {
  auto found = block().barriers.find(address);
  if (found == block().barriers.end()) fail("there is no barrier at " + std::to_string(address));
  return found->second;
}

inline void end_phase(SharedBarrier& barrier) {
  if (barrier.missing < 0) launch->failure = "more arrivals at a barrier than it expects";
  if (barrier.missing == 0 && barrier.bytes == 0) barrier.phases++, barrier.missing = barrier.expected;
}

}  // namespace machine

inline void expect_bytes(unsigned barrier, int bytes) {
  machine::SharedBarrier& at = machine::barrier_at(barrier);
  at.bytes += bytes, at.missing--;
  machine::end_phase(at);
}

inline void arrive(unsigned barrier) { expect_bytes(barrier, 0); }

// The lanes of a warp test a barrier at once, so that none goes on before the others have seen the phase end.
inline void wait_barrier(unsigned barrier, int parity) {
  machine::SharedBarrier& at = machine::barrier_at(barrier);
  machine::wait_until([&at, parity] { return at.phases % 2 != parity; }, "barrier at " + std::to_string(barrier));
  machine::together(barrier, "mbarrier.try_wait");
}

inline void sync_named(int id, int threads) {
  machine::arrive_and_wait(machine::block().named[id], threads, "named barrier " + std::to_string(id));
}

inline void arrive_named(int id, int threads) { machine::arrive(machine::block().named[id], threads); }

inline void take_registers() {}
inline void give_registers() {}

inline void copy_box(unsigned shared, const TensorMap* map, int x, int y, unsigned barrier) {
  const auto* rows = reinterpret_cast<const machine::MapOfRows*>(map);
  const char* from = rows->origin + y * rows->row_bytes + x * 2;
  machine::Block* block = &machine::block();
  std::memset(machine::in_shared(shared), machine::NOTHING, rows->box_rows * 128);
  block->copies.push_back([=] {
    for (unsigned at = 0; at < rows->box_rows * 128; at += 16)
      std::memcpy(block->shared + machine::swizzled(shared + at), from + at / 128 * rows->row_bytes + at % 128, 16);
    machine::SharedBarrier& full = block->barriers.at(barrier);
    full.bytes -= rows->box_rows * 128;
    machine::end_phase(full);
  });
}

// Products of a warpgroup. Each thread computes its own values: at once, or when it waits.
namespace machine {

struct Operand {
  unsigned start, leading, stride;
};

inline Operand operand(uint64_t descriptor) {
  auto field = [&](int bit) { return static_cast<unsigned>(descriptor >> bit & 0x3fff) << 4; };
  return {field(0), field(16), field(32)};
}

inline float value_at(const Block* block, unsigned address) {
  return to_float(load<word16>(block->shared + swizzled(address)));
}

using Values = std::array<float, 16>;

// Row i of an operand whose contracted index is contiguous; and column i of one whose other index is.
inline Values row(const Block* block, const Operand& of, int i) {
  Values values;
  for (int k = 0; k < 16; k++) values[k] = value_at(block, of.start + i / 8 * of.stride + i % 8 * 128 + k * 2);
  return values;
}

inline Values column(const Block* block, const Operand& of, int i) {
  Values values;
  for (int k = 0; k < 16; k++)
    values[k] = value_at(block, of.start + i / 64 * of.leading + k / 8 * of.stride + k % 8 * 128 + i % 64 * 2);
  return values;
}

inline float dot(const Values& x, const Values& y) {
  float sum = 0;
  for (int k = 0; k < 16; k++) sum += x[k] * y[k];
  return sum;
}

inline void multiply(Action compute) {
  if (thread().computes_late)
    thread().products.push_back({thread().product_groups, std::move(compute)});
  else
    compute();
}

// Row and column of a thread's i-th value of a product of 64 rows.
inline int row_of(unsigned thread, int i) { return thread / WARP % 4 * 16 + thread % WARP / 4 + i / 2 % 2 * 8; }
inline int column_of(unsigned thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

}  // namespace machine

inline void begin_wgmma() { machine::thread().computes_late = machine::chance(2); }

inline void commit_wgmma() {
  machine::thread().product_groups++;
  machine::thread().computes_late = machine::chance(2);
}

template <int N>
void wait_wgmma() {
  machine::Thread& thread = machine::thread();
  auto is_due = [&](const machine::Product& product) { return product.group < thread.product_groups - N; };
  auto& products = thread.products;
  for (; !products.empty() && is_due(products.front()); products.erase(products.begin())) products.front().compute();
  machine::together(N, "wgmma.wait_group");  // an instruction of the whole warp
}

template <int N>
void pin(float (&)[N]) {}

template <int N>
void wgmma_scores(float (&d)[N], unsigned long long a, unsigned long long b, int add) {
  float* sums = d;
  const machine::Block* block = &machine::block();
  machine::Operand left = machine::operand(a), right = machine::operand(b);
  machine::multiply([=, thread = machine::thread().number] {
    machine::Values rows[2] = {machine::row(block, left, machine::row_of(thread, 0)),
                               machine::row(block, left, machine::row_of(thread, 2))};
    for (int i = 0; i < N; i++) {
      float product = machine::dot(rows[i / 2 % 2], machine::row(block, right, machine::column_of(thread, i)));
      sums[i] = add ? sums[i] + product : product;
    }
  });
}

template <int N>
void wgmma_values(float (&d)[N], const unsigned (&a)[4], unsigned long long b) {
  float* sums = d;
  const machine::Block* block = &machine::block();
  machine::Operand right = machine::operand(b);
  // Words of the four lanes that share two rows: words 0 and 1 of keys 0 to 7, words 2 and 3 of keys 8 to 15.
  std::array<std::array<uint64_t, machine::WARP>, 4> words;
  for (int i = 0; i < 4; i++) words[i] = machine::together(a[i], "wgmma");
  std::array<machine::Values, 2> rows;
  for (int row = 0; row < 2; row++)
    for (int k = 0; k < 16; k++) {
      uint64_t word = words[k / 8 * 2 + row][machine::lane() / 4 * 4 + k % 8 / 2];
      rows[row][k] = to_float(static_cast<word16>(word >> k % 2 * 16));
    }
  machine::multiply([=, thread = machine::thread().number] {
    for (int i = 0; i < N; i++)
      sums[i] += machine::dot(rows[i / 2 % 2], machine::column(block, right, machine::column_of(thread, i)));
  });
}
