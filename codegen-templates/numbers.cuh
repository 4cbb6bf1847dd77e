// Elementary functions: the same operations in the same order as the compiler's interpreter, so the same bits.
// Translated with `-fmad=false`: a product and a sum round separately wherever they stand.
#pragma once
#include "prelude.cuh"

DEVICE float not_a_number() { return from_bits(0x7fc00000u); }
DEVICE bool is_nan(float x) { return x != x; }
DEVICE float magnitude(float x) { return from_bits(to_bits(x) & 0x7fffffffu); }
DEVICE float with_sign(float x, float sign) { return from_bits((to_bits(x) & 0x7fffffffu) | (to_bits(sign) & 0x80000000u)); }
DEVICE float negated(float x) { return from_bits(to_bits(x) ^ 0x80000000u); }

// The larger; +0 over -0; a NaN if either is one.
DEVICE float larger(float a, float b) {
  if (is_nan(a) || is_nan(b)) return not_a_number();
  if (a == b) return from_bits(to_bits(a) & to_bits(b));
  return a > b ? a : b;
}
DEVICE float smaller(float a, float b) {
  if (is_nan(a) || is_nan(b)) return not_a_number();
  if (a == b) return from_bits(to_bits(a) | to_bits(b));
  return a < b ? a : b;
}
// Whether `a` stands before `b` in a selection of the largest, equals apart: a NaN stands behind every number.
DEVICE bool outranks(float a, float b) { return is_nan(b) ? !is_nan(a) : a > b; }

DEVICE float power_of_two(int k) { return from_bits((u32)(k + 127) << 23); }
constexpr u32 LN2_HIGH = 0x3f317200u, LN2_LOW = 0x35bfbe8eu;

DEVICE float exponential(float x) {
  constexpr float SHIFT = 12582912.0f;
  x = x > 89.0f ? 89.0f : x;
  x = x < -105.0f ? -105.0f : x;
  const float shifted = x * from_bits(0x3fb8aa3bu) + SHIFT;
  const int k = (int)(to_bits(shifted) - to_bits(SHIFT));
  const float kf = shifted - SHIFT;
  const float high = x - kf * from_bits(LN2_HIGH);
  const float low = kf * from_bits(LN2_LOW);
  const float r = high - low;
  const float lost = (high - r) - low;
  const float p =
      (((from_bits(0x3ab62e35u) * r + from_bits(0x3c091df7u)) * r + from_bits(0x3d2aaadcu)) * r + from_bits(0x3e2aaa47u)) * r + 0.5f;
  const float y = 1.0f + (r + (r * r * p + lost));
  const int k1 = k >> 1;
  return (y * power_of_two(k1)) * power_of_two(k - k1);
}

DEVICE float sigmoid(float x) { return quotient(1.0f, 1.0f + exponential(negated(x))); }

DEVICE void log_reduce(float x, int& k, float& m) {
  const u32 bits = to_bits(x) + (0x3f800000u - 0x3f3504f3u);
  k = (int)(bits >> 23) - 127;
  m = from_bits((bits & 0x007fffffu) + 0x3f3504f3u);
}
DEVICE float log_assemble(int k, float f, float c) {
  const float kf = (float)k;
  const float s = quotient(f, 2.0f + f);
  const float z = s * s;
  const float r = z * (((from_bits(0x3e789d95u) * z + from_bits(0x3e91e9f0u)) * z + from_bits(0x3eccce13u)) * z + from_bits(0x3f2aaaaau));
  const float half_square = 0.5f * f * f;
  return kf * from_bits(LN2_HIGH) + (((s * (half_square + r) + (kf * from_bits(LN2_LOW) + c)) - half_square) + f);
}
// ln(1 + x).
DEVICE float log_one_plus(float x) {
  const float infinity = from_bits(0x7f800000u);
  if (magnitude(x) < from_bits(0x33800000u) || x == infinity) return x;
  if (x == -1.0f) return negated(infinity);
  if (x < -1.0f || is_nan(x)) return not_a_number();
  const float u = 1.0f + x;
  int k;
  float m;
  log_reduce(u, k, m);
  if (k == 0) return log_assemble(0, x, 0.0f);
  const float lost = x >= 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  return log_assemble(k, m - 1.0f, quotient(lost, u));
}

DEVICE float hyperbolic_tangent(float x) {
  const float a = magnitude(x);
  float y;
  if (a < 0.7f) {
    const float z = a * a;
    const float t = ((((from_bits(0x3af99733u) * z + from_bits(0xbc015dddu)) * z + from_bits(0x3cb0c45eu)) * z + from_bits(0xbd5cde10u)) * z +
                     from_bits(0x3e0887abu)) * z + from_bits(0xbeaaaaa8u);
    y = a + a * (z * t);
  } else {
    y = 1.0f - quotient(2.0f, exponential(2.0f * a) + 1.0f);
  }
  return with_sign(y, x);
}

struct Reduced { u32 quadrant; float high, low; };

// 2/pi in binary; bit 0 stands for 2^31.
__device__ const u32 TWO_OVER_PI[8] = {0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
DEVICE u32 two_over_pi(int word) { return TWO_OVER_PI[word & 7]; }
DEVICE u64 pi_window(int word, u32 shift, int i) {
  const u64 pair = (u64)two_over_pi(word + i) << 32 | (u64)two_over_pi(word + i + 1);
  return (pair << shift) >> 32;
}
DEVICE Reduced reduce_angle(float x) {
  if (x <= from_bits(0x3f490fdbu)) return Reduced{0u, x, 0.0f};
  const u32 bits = to_bits(x);
  const u64 m = (u64)((bits & 0x007fffffu) | 0x00800000u);
  const u32 start = (bits >> 23) - 120u;
  const int word = (int)(start >> 5);
  const u32 shift = start & 31u;
  const u64 turns = ((m * pi_window(word, shift, 0)) << 32) + m * pi_window(word, shift, 1) + ((m * pi_window(word, shift, 2)) >> 32);
  const u64 quadrant = (turns + (1ull << 61)) >> 62;
  const i64 rest = (i64)(turns - (quadrant << 62));
  const u64 size = (rest < 0 ? (u64)0 - (u64)rest : (u64)rest) | 1ull;
  const int zeros = __clzll((i64)size);
  const u64 radians = ((size << zeros) >> 32) * 0xc90fdaa2ull;
  const float scale = power_of_two(-21 - zeros);
  float high = (float)(u32)(radians >> 40) * scale;
  float low = (float)(u32)((radians >> 16) & 0x00ffffffull) * (scale * from_bits(0x33800000u));
  if (rest < 0) { high = negated(high); low = negated(low); }
  return Reduced{(u32)quadrant, high, low};
}
DEVICE float sine_of(float high, float low) {
  const float z = high * high;
  const float p = (from_bits(0xb94caad7u) * z + from_bits(0x3c0883beu)) * z + from_bits(0xbe2aaaa3u);
  return high + (high * z * p + low * (1.0f - 0.5f * z));
}
DEVICE float cosine_of(float high, float low) {
  const float z = high * high;
  const float p = (from_bits(0x37ccf406u) * z + from_bits(0xbab60614u)) * z + from_bits(0x3d2aaaa5u);
  const float half = 0.5f * z;
  const float w = 1.0f - half;
  return w + (((1.0f - w) - half) + (z * z * p - high * low));
}
DEVICE float sine(float x) {
  const float a = magnitude(x);
  if (a < from_bits(0x39800000u)) return x;
  if (!(a < from_bits(0x7f800000u))) return not_a_number();
  const Reduced r = reduce_angle(a);
  const float y = (r.quadrant & 1u) == 0u ? sine_of(r.high, r.low) : cosine_of(r.high, r.low);
  return ((r.quadrant & 2u) != 0u) != (x < 0.0f) ? negated(y) : y;
}
DEVICE float cosine(float x) {
  const float a = magnitude(x);
  if (!(a < from_bits(0x7f800000u))) return not_a_number();
  const Reduced r = reduce_angle(a);
  const float y = (r.quadrant & 1u) == 0u ? cosine_of(r.high, r.low) : sine_of(r.high, r.low);
  return ((r.quadrant + 1u) & 2u) != 0u ? negated(y) : y;
}
