// A grid of CUDA threads on one CPU core, to run kernels without a GPU.
//
// Every thread is a coroutine with a stack of its own, which gives up the core where a thread may wait: at barriers and
// at what a warp does together. The order is random, from a seed: which warp goes on, how far, from which of its lanes,
// how many thread blocks are resident, and when asynchronous copies arrive. So another seed is another schedule, and a
// kernel must be right in all of them. When nobody can go on, the launch fails and names what every warp waits for.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace machine {

constexpr unsigned WARP = 32, SHARED_BYTES = 227 << 10, STATIC_BYTES = 48 << 10, STACK_BYTES = 128 << 10;
using Action = std::function<void()>;

struct Dim3 {
  unsigned x, y, z;
};

struct Barrier {
  int arrived = 0, phases = 0;
};

// What the lanes of a warp contribute together: two rounds, since a fast lane may be one ahead.
struct Round {
  std::array<uint64_t, WARP> values;
  unsigned arrived = 0;
};

struct Warp {
  Round rounds[2];
  std::string operation[2];
};

// A barrier in shared memory (PTX: mbarrier): a phase ends when all have arrived and all bytes have been copied.
struct SharedBarrier {
  int expected = 0, missing = 0, phases = 0;
  long bytes = 0;
};

struct Block {
  Dim3 index;
  std::unique_ptr<char[]> memory;
  char* shared;          // dynamic; static variables lie behind it
  std::vector<Warp> warps;
  Barrier all;
  std::map<int, Barrier> named;
  std::map<unsigned, SharedBarrier> barriers;
  std::map<const void*, char*> variables;
  size_t static_bytes = 0;
  std::vector<Action> copies;  // on their way
  unsigned running = 0;        // threads
};

struct Product {
  int group;
  Action compute;
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Block* block = nullptr;
  unsigned number = 0, rounds = 0;
  bool ended = false;
  std::function<bool()> ready;  // none: it can go on
  std::string waits_for;
  std::vector<Action> copies;      // by itself, not waited for
  std::vector<Product> products;   // of matrices, not waited for
  int product_groups = 0;
  bool computes_late = false;
};

// The launch that runs.
struct Launch {
  Dim3 grid;
  unsigned num_threads, shared_bytes;
  Action kernel;
  std::mt19937 random;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::vector<std::unique_ptr<Thread>>> warps;
  ucontext_t scheduler;
  Thread* current = nullptr;
  std::string failure;
};

inline Launch* launch;

inline Thread& thread() { return *launch->current; }
inline Block& block() { return *thread().block; }
inline Warp& warp() { return block().warps[thread().number / WARP]; }
inline unsigned lane() { return thread().number % WARP; }
inline bool chance(unsigned one_in) { return launch->random() % one_in == 0; }

inline void leave() { swapcontext(&thread().context, &launch->scheduler); }

// Ends the launch with an error.
inline void fail(const std::string& why) {
  if (launch->failure.empty()) launch->failure = why + " (thread " + std::to_string(thread().number) + ")";
  thread().ready = [] { return false; };
  leave();
}

inline void wait_until(std::function<bool()> ready, std::string what) {
  if (ready()) return;
  thread().ready = std::move(ready), thread().waits_for = std::move(what);
  leave();
}

inline void arrive(Barrier& barrier, int expected) {
  if (++barrier.arrived == expected) barrier.arrived = 0, barrier.phases++;
}

inline void arrive_and_wait(Barrier& barrier, int expected, const std::string& name) {
  int phase = barrier.phases;
  arrive(barrier, expected);
  wait_until([&barrier, phase] { return barrier.phases != phase; }, name);
}

// What every lane of the warp gives, once all have called; they must all call the same operation.
inline std::array<uint64_t, WARP> together(uint64_t value, const char* operation) {
  int number = thread().rounds++ % 2;
  Round& round = warp().rounds[number];
  if (round.arrived == WARP) round.arrived = 0;  // all lanes have left it: they are in the next one
  if (round.arrived == 0) warp().operation[number] = operation;
  if (warp().operation[number] != operation) fail("lanes of a warp differ: " + warp().operation[number] + ", " + operation);
  round.values[lane()] = value;
  round.arrived++;
  wait_until([&round] { return round.arrived == WARP; }, operation);
  return round.values;
}

template <class T>
uint64_t to_bits(T value) {
  uint64_t bits = 0;
  static_assert(sizeof(T) <= sizeof(bits));
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// A variable in shared memory, filled with NaN before its first use; `key` is different for each.
template <class T>
T& shared_variable(const void* key) {
  char*& place = block().variables[key];
  if (!place) {
    size_t align = std::max<size_t>(alignof(T), 16), at = (block().static_bytes + align - 1) / align * align;
    place = block().shared + SHARED_BYTES + at;
    block().static_bytes = at + sizeof(T);
    if (block().static_bytes > STATIC_BYTES) fail("static variables do not fit shared memory");
  }
  return *reinterpret_cast<T*>(place);
}

inline void run_thread() {
  launch->kernel();
  thread().ended = true;
  leave();
}

inline std::unique_ptr<Thread> new_thread(Block& of, unsigned number) {
  auto thread = std::make_unique<Thread>();
  thread->block = &of, thread->number = number;
  thread->stack = std::make_unique<char[]>(STACK_BYTES);
  getcontext(&thread->context);
  thread->context.uc_stack = {.ss_sp = thread->stack.get(), .ss_flags = 0, .ss_size = STACK_BYTES};
  makecontext(&thread->context, run_thread, 0);
  return thread;
}

inline void start_block(unsigned number) {
  const Dim3& grid = launch->grid;
  auto block = std::make_unique<Block>();
  block->index = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
  size_t bytes = SHARED_BYTES + STATIC_BYTES, space = bytes + 1024;
  block->memory = std::make_unique<char[]>(space);
  void* place = block->memory.get();
  block->shared = static_cast<char*>(std::align(1024, bytes, place, space));
  std::memset(block->shared, 0xff, bytes);  // NaN, as any value may be there
  block->warps.resize(launch->num_threads / WARP);
  block->running = launch->num_threads;
  for (unsigned i = 0; i < launch->num_threads; i++) {
    if (i % WARP == 0) launch->warps.emplace_back();
    launch->warps.back().push_back(new_thread(*block, i));
  }
  launch->blocks.push_back(std::move(block));
}

// Lets each lane of a warp that can go on do so, from a random one on; returns whether one did.
inline bool run_warp(std::vector<std::unique_ptr<Thread>>& lanes) {
  unsigned first = launch->random() % WARP;
  bool moved = false;
  for (unsigned i = 0; i < WARP; i++) {
    Thread& next = *lanes[(first + i) % WARP];
    if (next.ended || (next.ready && !next.ready())) continue;
    next.ready = nullptr;
    launch->current = &next;
    swapcontext(&launch->scheduler, &next.context);
    if (next.ended) next.block->running--, next.stack.reset();
    moved = true;
  }
  return moved;
}

// One of the copies that are on their way arrives; returns whether there was one.
inline bool deliver_copy(Block& block) {
  if (block.copies.empty()) return false;
  size_t which = launch->random() % block.copies.size();
  Action copy = std::move(block.copies[which]);
  block.copies.erase(block.copies.begin() + which);
  copy();
  return true;
}

inline void end_blocks() {
  auto has_ended = [](const auto& lanes) { return lanes.front()->block->running == 0; };
  std::erase_if(launch->warps, has_ended);
  std::erase_if(launch->blocks, [](const auto& block) { return block->running == 0; });
}

inline std::string who_waits() {
  std::string text = "nobody can go on";
  for (const auto& lanes : launch->warps)
    for (const auto& thread : lanes)
      if (!thread->ended) {
        text += "; warp " + std::to_string(thread->number / WARP) + ": " + thread->waits_for;
        break;
      }
  return text;
}

// Goes on with something, in a random order; returns whether anything could.
inline bool advance(unsigned delay) {
  size_t count = launch->warps.size(), first = launch->random() % count;
  for (auto& block : launch->blocks)
    if (chance(delay) && deliver_copy(*block)) return true;
  for (size_t i = 0; i < count; i++)
    if (run_warp(launch->warps[(first + i) % count])) return true;
  return std::any_of(launch->blocks.begin(), launch->blocks.end(), [](auto& block) { return deliver_copy(*block); });
}

// Runs a whole grid; returns an error, empty if there is none.
inline std::string run(Dim3 grid, unsigned num_threads, unsigned shared_bytes, unsigned seed, Action kernel) {
  Launch here{.grid = grid, .num_threads = num_threads, .shared_bytes = shared_bytes, .kernel = std::move(kernel),
              .random = std::mt19937(seed)};
  launch = &here;
  unsigned begun = 0, total = grid.x * grid.y * grid.z, resident = 1 + here.random() % 4, delay = 1u << here.random() % 8;
  while (here.failure.empty()) {
    while (begun < total && here.blocks.size() < resident) start_block(begun++);
    if (here.blocks.empty()) break;
    if (!advance(delay)) here.failure = who_waits();
    end_blocks();
  }
  return here.failure;
}

}  // namespace machine

// What CUDA C++ itself offers.
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define threadIdx (machine::Dim3{machine::thread().number, 0, 0})
#define blockIdx (machine::block().index)
#define blockDim (machine::Dim3{machine::launch->num_threads, 1, 1})
#define gridDim (machine::launch->grid)

using std::max;
using std::min;

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __int_as_float(unsigned bits) { return machine::from_bits<float>(bits); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }

template <class T>
T __ldg(const T* place) { return *place; }
template <class T>
T __ldcg(const T* place) { return *place; }

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) result |= (bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}

inline void __syncthreads() {
  machine::arrive_and_wait(machine::block().all, machine::launch->num_threads, "__syncthreads");
}

inline void __syncwarp() { machine::together(0, "__syncwarp"); }

template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return machine::from_bits<T>(machine::together(machine::to_bits(value), "__shfl_sync")[from % machine::WARP]);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return machine::from_bits<T>(machine::together(machine::to_bits(value), "__shfl_xor_sync")[machine::lane() ^ mask]);
}

template <class T>
T __shfl_up_sync(unsigned, T value, unsigned distance) {
  auto values = machine::together(machine::to_bits(value), "__shfl_up_sync");
  return machine::from_bits<T>(values[machine::lane() < distance ? machine::lane() : machine::lane() - distance]);
}

inline unsigned __ballot_sync(unsigned, bool vote) {
  auto votes = machine::together(vote, "__ballot_sync");
  unsigned result = 0;
  for (unsigned i = 0; i < machine::WARP; i++) result |= static_cast<unsigned>(votes[i]) << i;
  return result;
}

inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }

inline int __reduce_add_sync(unsigned, int value) {
  int sum = 0;
  for (uint64_t x : machine::together(machine::to_bits(value), "__reduce_add_sync")) sum += machine::from_bits<int>(x);
  return sum;
}

inline int __reduce_max_sync(unsigned, int value) {
  int most = value;
  for (uint64_t x : machine::together(machine::to_bits(value), "__reduce_max_sync")) most = max(most, machine::from_bits<int>(x));
  return most;
}

inline int atomicAdd(int* place, int value) {
  int before = *place;
  *place += value;
  return before;
}
