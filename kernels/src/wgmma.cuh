// Of prefill_tma.cu: warpgroup matrix products of Hopper (PTX ISA, wgmma.mma_async; target sm_90a),
// barriers in shared memory, named barriers, tensor copies; and a warpgroup's products.
#pragma once

struct __align__(64) TensorMap {  // CUtensorMap, encoded by the host
  unsigned long long opaque[16];
};

DEVICE void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Barriers of so many stages, one behind the other.
DEVICE void init_stages(unsigned barrier, int stages, int arrivals) {
  for (int stage = 0; stage < stages; stage++) init_barrier(barrier + stage * 8, arrivals);
}

DEVICE void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase end only after so many bytes were copied.
DEVICE void expect_bytes(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits until the phase of this parity has ended; on a fresh barrier parity 1 has.
DEVICE void wait_barrier(unsigned barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(barrier), "r"(parity) : "memory");
}

// A box of a tensor to shared memory; the barrier hears of its bytes.
DEVICE void copy_box(unsigned shared, const TensorMap* map, int x, int y, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

DEVICE void sync_named(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

DEVICE void arrive_named(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 224;" ::); }

DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 56;" ::); }

// Descriptor of a 128-byte-swizzled tile: rows of 64 values, 16-byte vector v of row r at position v ^ (r % 8), 8
// rows a kilobyte. `stride` is from 8 rows to the next 8; `leading` from 64 values to the next 64 where those are
// contiguous.
DEVICE unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride) {
  return (unsigned long long)((address & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

// Registers handed to wgmma from here on are complete; what it wrote is so after wait_wgmma.
DEVICE void begin_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

DEVICE void commit_wgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int N>
DEVICE void wait_wgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps the compiler from moving uses of an accumulator across an asynchronous product.
template <int N>
DEVICE void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Ordinary and cp.async writes to shared memory become visible to wgmma.
DEVICE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The accumulators of a product as operands of its instruction: 32 for 64 columns, 64 for 128.
#define NAMES_32                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                          \
  NAMES_32                                                                                \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "    \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define IN_OUT_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define IN_OUT_16(i) IN_OUT_4(i), IN_OUT_4(i + 4), IN_OUT_4(i + 8), IN_OUT_4(i + 12)
#define IN_OUT_32 IN_OUT_16(0), IN_OUT_16(16)
#define IN_OUT_64 IN_OUT_32, IN_OUT_16(32), IN_OUT_16(48)
#define WGMMA(columns) "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." PTX_TYPE "." PTX_TYPE " {"

// d[64x128] (+)= a[64x16] b[16x128], both in shared memory with the contracted index contiguous; `add` 0 overwrites d.
DEVICE void wgmma_scores(float (&d)[64], unsigned long long a, unsigned long long b, int add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; " WGMMA("128") NAMES_64 "}, %64, %65, p, 1, 1, 0, 0;}"
               : IN_OUT_64 : "l"(a), "l"(b), "r"(add));
}

// The same for 64 columns, d[64x64].
DEVICE void wgmma_scores(float (&d)[32], unsigned long long a, unsigned long long b, int add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; " WGMMA("64") NAMES_32 "}, %32, %33, p, 1, 1, 0, 0;}"
               : IN_OUT_32 : "l"(a), "l"(b), "r"(add));
}

// d[64x128] += a[64x16] b[16x128]: a in registers (as m16n8k16, 16 rows a warp), b in shared memory, 128 contiguous.
DEVICE void wgmma_values(float (&d)[64], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(WGMMA("128") NAMES_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : IN_OUT_64 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d[64x64] += a[64x16] b[16x64]: a in registers (as m16n8k16, 16 rows a warp), b in shared memory, 64 contiguous.
DEVICE void wgmma_values(float (&d)[32], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(WGMMA("64") NAMES_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
               : IN_OUT_32 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Tiles: 128 rows, in slabs of 64 dims.
#define Q_ROWS 128
#define K_ROWS 128
#define SLABS (HEAD_SIZE / 64)
#define SLAB_BYTES (128 * 128)  // 128 rows of 64 values
#define TILE_BYTES (SLABS * SLAB_BYTES)
#define VECTORS (HEAD_SIZE / 8)

// Byte offset of 16-byte vector `vector` of row `row` in a tile.
DEVICE unsigned place(int row, int vector) {
  return vector / 8 * SLAB_BYTES + row * 128 + ((vector % 8 ^ row % 8) << 4);
}

// KEYS: 128, or 64 where a warpgroup's rows see no more of a tile: s is then the first half of what it is else.
template <int KEYS>
DEVICE void start_scores(float (&s)[KEYS / 2], unsigned q, unsigned k) {
#pragma unroll
  for (int d = 0; d < HEAD_SIZE / 16; d++) {
    unsigned at = d / 4 * SLAB_BYTES + d % 4 * 32;
    wgmma_scores(s, descriptor(q + at, 16, 1024), descriptor(k + at, 16, 1024), d > 0);
  }
  commit_wgmma();
}

template <int KEYS>
DEVICE void start_values(float (&o)[HEAD_SIZE / 2], const unsigned (&p)[8][4], unsigned v) {
#pragma unroll
  for (int n = 0; n < KEYS / 16; n++) wgmma_values(o, p[n], descriptor(v + n * 2048, SLAB_BYTES, 1024));
  commit_wgmma();
}

template <int KEYS>
DEVICE void pack_weights(unsigned (&p)[8][4], const float (&s)[KEYS / 2]) {
#pragma unroll
  for (int n = 0; n < KEYS / 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) p[n][i] = pack(s[8 * n + 2 * i], s[8 * n + 2 * i + 1]);
}

template <int KEYS>
DEVICE void add_last_values(float (&o)[HEAD_SIZE / 2], const unsigned (&p)[8][4], unsigned v) {
  pin(o);
  begin_wgmma();
  start_values<KEYS>(o, p, v);
  wait_wgmma<0>();
  pin(o);
}
