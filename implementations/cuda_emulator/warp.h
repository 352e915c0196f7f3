// Warp collectives: __syncwarp, shuffles, votes, reductions and mma. All but __syncwarp exchange words and order no
// memory (CUDA C++ Programming Guide, "Warp Shuffle Functions": they imply no memory barrier).
#pragma once
#include <type_traits>

#include "block.h"

namespace __attribute__((visibility("hidden"))) cuda_emulator {

CUDA_EMULATOR_RUNTIME inline void open_group(Warp& warp, Group& group) {
  if (!group.arrived || (group.arrived & warp.alive) != (group.mask & warp.alive)) return;
  const int base = int(&warp - block.warp) * 32;
  const unsigned here = group.arrived;
  group.meeting[group.meetings & 1].present = here;
  ++group.meetings;
  group.arrived = 0;
  for (int lane = 0; lane < 32; ++lane)
    if ((here >> lane & 1) && block.fiber[base + lane].wait == Wait::warp) make_ready(base + lane);
}

CUDA_EMULATOR_RUNTIME inline Group& group_of(Warp& warp, unsigned mask, const Place& place) {
  for (int i = 0; i < warp.groups; ++i)
    if (warp.group[i].mask == mask) return warp.group[i];
  if (warp.groups == MAX_GROUPS) fail(place, "a warp meets under more than %d masks", MAX_GROUPS);
  Group& group = warp.group[warp.groups++];
  group.mask = mask;
  group.arrived = group.meetings = 0;
  return group;
}

// Meets the lanes of `mask` and returns what each brought, all bits set for a lane that is not there. It holds
// until the lane's next meeting under the mask. orders: as __syncwarp orders memory.
CUDA_EMULATOR_RUNTIME inline const Meeting& meet(const char* what, unsigned mask, const Words& mine, const Place& place,
                                               bool orders = false) {
  Fiber* fiber = self;
  Warp& warp = block.warp[fiber->warp];
  if (!(mask >> fiber->lane & 1)) fail(place, "%s: lane %d is not in its own mask 0x%08x", what, fiber->lane, mask);
  Group& group = group_of(warp, mask, place);
  const unsigned parity = group.meetings & 1;
  if (!group.arrived) {
    group.place = place;
    for (Words& words : group.meeting[parity].words)
      for (uint64_t& word : words.word) word = ~uint64_t(0);
  } else if (group.place.line != place.line || strcmp(group.place.file, place.file)) {
    fail(place, "divergent %s: lanes of the same mask 0x%08x wait at line %u", what, mask,
         group.place.line);
  }
  for (int i = 0; i < 6; ++i) group.meeting[parity].words[fiber->lane].word[i] = mine.word[i];
  group.arrived |= 1u << fiber->lane;
  if (orders) { CUDA_EMULATOR_TSAN(__tsan_release(&group.order[parity]);) }
  fiber->wait = Wait::warp;
  open_group(warp, group);
  run_next(place);
  if (orders) { CUDA_EMULATOR_TSAN(__tsan_acquire(&group.order[parity]);) }
  return group.meeting[parity];
}

CUDA_EMULATOR_RUNTIME inline uint64_t word_of(const Meeting& meeting, int lane, int index = 0) {
  return meeting.words[lane].word[index];
}

CUDA_EMULATOR_RUNTIME inline bool came(const Meeting& meeting, int lane) { return meeting.present >> lane & 1; }

template <class T>
uint64_t bits_of(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "a warp exchanges values of at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
T value_of(uint64_t bits) {
  T value;
  memcpy((void*)&value, &bits, sizeof value);
  return value;
}

template <class T>
T shuffle(const char* what, unsigned mask, T value, int from, const Place& place) {
  return value_of<T>(word_of(meet(what, mask, Words{{bits_of(value)}}, place), from & 31));
}

inline unsigned ballot(const char* what, unsigned mask, bool vote, const Place& place) {
  const Meeting& meeting = meet(what, mask, Words{{vote}}, place);
  unsigned votes = 0;
  for (int lane = 0; lane < 32; ++lane) votes |= unsigned(word_of(meeting, lane) == 1) << lane;
  return votes;
}

template <class T, class Combine>
T reduce(const char* what, unsigned mask, T value, Combine combine, const Place& place) {
  const Meeting& meeting = meet(what, mask, Words{{bits_of(value)}}, place);
  for (int lane = 0; lane < 32; ++lane)
    if (lane != self->lane && came(meeting, lane)) value = combine(value, value_of<T>(word_of(meeting, lane)));
  return value;
}

// mma.sync.aligned.m16n8k16.row.col.f32.T.T.f32, d += a b, with T __half or __nv_bfloat16. Fragments as PTX ISA lays
// them out ("Matrix Fragments for mma.m16n8k16 with floating point type"), with g = lane / 4 and t = lane % 4:
// a[0] holds A[g][2t..], a[1] A[g + 8][2t..], a[2] A[g][2t + 8..], a[3] A[g + 8][2t + 8..]; b[0] holds B[2t..][g],
// b[1] B[2t + 8..][g]; d[0], d[1] hold D[g][2t..], d[2], d[3] D[g + 8][2t..].
template <class T>
void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Place place = std::source_location::current()) {
  static_assert(sizeof(T) == 2);
  Words mine;
  for (int i = 0; i < 6; ++i) {
    const unsigned packed = i < 4 ? a[i] : b[i - 4];
    float pair[2];
    for (int half = 0; half < 2; ++half) pair[half] = float(value_of<T>(packed >> 16 * half & 0xffff));
    memcpy(&mine.word[i], pair, 8);
  }
  const Meeting& meeting = meet("mma.sync", ~0u, mine, place);
  const int g = self->lane / 4, t = self->lane % 4;
  float left[2][16], right[2][16];  // rows g, g + 8 of A; columns 2t, 2t + 1 of B
  for (int k = 0; k < 16; k += 2) {
    const int register_half = k / 8, holder = k % 8 / 2;
    for (int i = 0; i < 2; ++i) {
      const uint64_t of_a = word_of(meeting, g * 4 + holder, register_half * 2 + i);
      const uint64_t of_b = word_of(meeting, (2 * t + i) * 4 + holder, 4 + register_half);
      memcpy(&left[i][k], &of_a, 8);
      memcpy(&right[i][k], &of_b, 8);
    }
  }
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k) d[i] += left[i / 2][k] * right[i % 2][k];
}

}  // namespace cuda_emulator

inline void __syncwarp(unsigned mask = ~0u, cuda_emulator::Place place = std::source_location::current()) {
  cuda_emulator::meet("__syncwarp", mask, {}, place, true);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
              cuda_emulator::Place place = std::source_location::current()) {
  const int own = cuda_emulator::self->lane;
  return cuda_emulator::shuffle("__shfl_sync", mask, value, own / width * width + (lane & (width - 1)), place);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  cuda_emulator::Place place = std::source_location::current()) {
  const int own = cuda_emulator::self->lane, other = own ^ lane_mask;
  return cuda_emulator::shuffle("__shfl_xor_sync", mask, value, other / width > own / width ? own : other, place);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 cuda_emulator::Place place = std::source_location::current()) {
  const int own = cuda_emulator::self->lane, other = own % width - int(delta);
  return cuda_emulator::shuffle("__shfl_up_sync", mask, value, other < 0 ? own : own - int(delta), place);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   cuda_emulator::Place place = std::source_location::current()) {
  const int own = cuda_emulator::self->lane, other = own % width + int(delta);
  return cuda_emulator::shuffle("__shfl_down_sync", mask, value, other >= width ? own : own + int(delta), place);
}

inline unsigned __ballot_sync(unsigned mask, int vote, cuda_emulator::Place place = std::source_location::current()) {
  return cuda_emulator::ballot("__ballot_sync", mask, vote != 0, place);
}

inline int __any_sync(unsigned mask, int vote, cuda_emulator::Place place = std::source_location::current()) {
  return cuda_emulator::ballot("__any_sync", mask, vote != 0, place) != 0;
}

inline int __all_sync(unsigned mask, int vote, cuda_emulator::Place place = std::source_location::current()) {
  return cuda_emulator::ballot("__all_sync", mask, vote == 0, place) == 0;
}

#define CUDA_EMULATOR_REDUCTION(name, expression)                                                                  \
  template <class T>                                                                                               \
  T name(unsigned mask, T value, cuda_emulator::Place place = std::source_location::current()) {                   \
    static_assert(std::is_integral_v<T>);                                                                          \
    return cuda_emulator::reduce(#name, mask, value, [](T a, T b) -> T { return expression; }, place);             \
  }
CUDA_EMULATOR_REDUCTION(__reduce_add_sync, a + b)
CUDA_EMULATOR_REDUCTION(__reduce_min_sync, b < a ? b : a)
CUDA_EMULATOR_REDUCTION(__reduce_max_sync, a < b ? b : a)
