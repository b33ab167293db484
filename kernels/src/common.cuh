// Shared by all kernels: 16-bit storage types, vector loads, tensor-core and asynchronous-copy primitives.
// No CUDA header is included, so a variant compiles in a fraction of a second and needs nothing but NVRTC.
// BF16 is 0 (fp16) or 1 (bf16); values are kept as raw 16-bit words and converted by PTX.
// FP8: cached values are e4m3, one byte, to be multiplied by a scale for each kv head, one for K and one for V.
// WINDOWED: a token reads the last `window` tokens only, itself included.
#pragma once

typedef unsigned short word16;        // one fp16 or bf16 value
typedef unsigned long long address_t;  // byte address

#define FULL_MASK 0xffffffffu
#define NEG_INF __int_as_float(0xff800000)
#define DEVICE static __device__ __forceinline__

// Score of a hidden token. A row whose first tiles are outside its window has no score yet: a finite value keeps NaN
// away, and what it adds is multiplied by 0 once a score arrives. A power of two: its product with the scale is exact,
// so that it minus itself stays 0 in a fused multiply-add.
#define MASKED (WINDOWED ? -0x1p100f : NEG_INF)

#if BF16
#define PTX_TYPE "bf16"
#else
#define PTX_TYPE "f16"
#endif

DEVICE float to_float(word16 x) {
#if BF16
  return __int_as_float((unsigned)x << 16);
#else
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
#endif
}

// Two floats to two rounded 16-bit values; `low` lands at the lower address.
DEVICE unsigned pack(float low, float high) {
  unsigned y;
  asm("cvt.rn." PTX_TYPE "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

DEVICE float low_float(unsigned pair) { return to_float((word16)(pair & 0xffff)); }
DEVICE float high_float(unsigned pair) { return to_float((word16)(pair >> 16)); }

#if FP8
// Two e4m3 values, the low byte first, to two 16-bit values; exact.
DEVICE unsigned widen(unsigned pair) {
  unsigned y;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"((word16)pair));
#if BF16
  float low, high;
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(low), "=f"(high) : "r"(y));
  y = pack(low, high);
#endif
  return y;
}

// Two 16-bit values, divided by `scale`, to two bytes of e4m3: to the nearest, those beyond 448 to 448.
DEVICE unsigned narrow(unsigned pair, float scale) {
  word16 y;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
      : "=h"(y) : "f"(high_float(pair) / scale), "f"(low_float(pair) / scale));
  return y;
}
#endif

DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// c[16x8] += a[16x16] * b[16x8] in fp32 (PTX ISA, mma.m16n8k16). With g = lane / 4 and t = lane % 4:
// a0 = (g, 2t..), a1 = (g + 8, 2t..), a2 = (g, 2t + 8..), a3 = (g + 8, 2t + 8..); b0 = (2t.., g), b1 = (2t + 8.., g);
// c0, c1 = (g, 2t..), c2, c3 = (g + 8, 2t..).
DEVICE void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." PTX_TYPE "." PTX_TYPE
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Transpose of an 8x8 tile of 16-bit values held by a warp, two per lane.
DEVICE unsigned transpose8x8(unsigned x) {
  unsigned y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

DEVICE unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Four 8x8 tiles from shared memory; lane i gives the address of row i % 8 of tile i / 8.
DEVICE void load_matrices(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

DEVICE void load_matrices_transposed(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

// 16 bytes from device to shared memory without passing registers; `bytes` below 16 fills the rest with zeros.
DEVICE void copy_async(unsigned shared, const void* global, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes));
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::); }

DEVICE void wait_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Streaming loads of data that is read once: they stay out of L1. Volatile keeps them where the pipeline puts them.
DEVICE uint4 stream16(address_t p) {
  uint4 y;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w) : "l"(p));
  return y;
}

DEVICE uint2 stream8(address_t p) {
  uint2 y;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(y.x), "=r"(y.y) : "l"(p));
  return y;
}

DEVICE unsigned stream4(address_t p) {
  unsigned y;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(y) : "l"(p));
  return y;
}

// 16 and 8 bytes from shared memory, where they are written.
DEVICE uint4 load_shared16(unsigned shared) {
  uint4 y;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w) : "r"(shared));
  return y;
}

DEVICE uint2 load_shared8(unsigned shared) {
  uint2 y;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(y.x), "=r"(y.y) : "r"(shared));
  return y;
}

// Adds and returns what was there; writes before it are visible to every later adder.
DEVICE int add_in_order(int* p, int x) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(x) : "memory");
  return before;
}

DEVICE float warp_max(float x) {
  for (int step = 16; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, step));
  return x;
}

DEVICE float warp_sum(float x) {
  for (int step = 16; step; step /= 2) x += __shfl_xor_sync(FULL_MASK, x, step);
  return x;
}
