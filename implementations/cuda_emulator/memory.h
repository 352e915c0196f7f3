// Shared memory of a block. Every byte is set to 0xff before a block runs, which is NaN in each floating type, so that
// what a kernel reads unset shows. Arrays stand apart by red zones: the address sanitizer is told of them, and without
// it a write into one is found when the block ends.
#pragma once
#include "block.h"

namespace __attribute__((visibility("hidden"))) cuda_emulator {

constexpr size_t RED_ZONE = 64;
constexpr int MAX_ARRAYS = 64;
constexpr size_t STATIC_BYTES = 48 << 10;    // what a kernel may declare
constexpr size_t DYNAMIC_BYTES = 227 << 10;  // what a launch may ask for, on sm_90 and sm_100
constexpr size_t ZONES = RED_ZONE * MAX_ARRAYS;
constexpr size_t ARENA_BYTES = DYNAMIC_BYTES + STATIC_BYTES + 4 * ZONES;

struct SubArray {  // a part of dynamic shared memory that `carve` has given out
  size_t start, bytes, logical_end;
};

struct Shared {
  char* base;       // dynamic shared memory, then a red zone, then the static arrays
  char* static_at;  // where the next static array may start
  size_t dynamic_bytes, static_bytes;
  SubArray carved[MAX_ARRAYS];
  int carvings, statics;
  bool overlaid;  // memory was carved anew: no red zone can be told from an array
  struct { char *start, *end; } zones[MAX_ARRAYS];  // behind the static arrays
  unsigned blocks;                                  // so many have run
};

inline Shared shared;

CUDA_EMULATOR_RUNTIME inline void open_zone([[maybe_unused]] const char* start, [[maybe_unused]] size_t bytes) {
  CUDA_EMULATOR_ASAN(__asan_unpoison_memory_region(start, bytes);)
}
CUDA_EMULATOR_RUNTIME inline void close_zone([[maybe_unused]] const char* start, [[maybe_unused]] const char* end) {
  CUDA_EMULATOR_ASAN(if (end > start) __asan_poison_memory_region(start, size_t(end - start));)
}

inline size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
inline char* dynamic_end() { return shared.base + rounded(shared.dynamic_bytes, 16) + ZONES; }

// With ThreadSanitizer the memory is new for each block: two blocks share none.
CUDA_EMULATOR_RUNTIME inline bool open_shared(size_t dynamic_bytes) {
  static size_t used = ARENA_BYTES;
  CUDA_EMULATOR_TSAN(if (shared.base) munmap(shared.base, ARENA_BYTES); shared.base = nullptr;)
  if (!shared.base) {
    void* given = mmap(nullptr, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (given == MAP_FAILED) return false;
    shared.base = (char*)given;
    used = ARENA_BYTES;
  }
  open_zone(shared.base, ARENA_BYTES);
  for (size_t i = 0; i < rounded(used, 8); i += 8) *(uint64_t*)(shared.base + i) = ~uint64_t(0);
  shared.dynamic_bytes = dynamic_bytes;
  shared.static_at = dynamic_end();
  shared.static_bytes = 0;
  shared.carvings = shared.statics = 0;
  shared.overlaid = false;
  ++shared.blocks;
  used = size_t(dynamic_end() - shared.base) + STATIC_BYTES + ZONES;
  close_zone(shared.base + dynamic_bytes, shared.base + ARENA_BYTES);
  return true;
}

// Gives a static array its place in the block's memory. Its address is a multiple of its alignment and of no more, so
// that a vector load from it which needs more is found.
CUDA_EMULATOR_RUNTIME inline char* new_static(size_t bytes, size_t alignment, const Place& place) {
  if (shared.static_bytes + bytes > STATIC_BYTES || shared.statics == MAX_ARRAYS)
    fail(place, "static shared memory is over %zu bytes or %d arrays", STATIC_BYTES, MAX_ARRAYS);
  const size_t step = alignment < 8 ? 8 : alignment, twice = 2 * step;
  char* start = (char*)(rounded(size_t(shared.static_at), twice) + step);
  open_zone(start, bytes);
  shared.zones[shared.statics++] = {start + bytes, start + bytes + RED_ZONE};
  shared.static_at = start + bytes + RED_ZONE;
  shared.static_bytes += bytes;
  return start;
}

struct Static {  // one `__shared__` declaration of a kernel
  unsigned block = 0;
  char* start = nullptr;
  template <class T>
  CUDA_EMULATOR_RUNTIME T& of_block(size_t alignment, Place place = std::source_location::current()) {
    if (block != shared.blocks) {
      block = shared.blocks;
      start = new_static(sizeof(T), alignment, place);
    }
    return *(T*)start;
  }
};

CUDA_EMULATOR_RUNTIME inline char* new_sub_array(size_t start, size_t bytes, size_t logical, const Place& place) {
  if (logical + bytes > shared.dynamic_bytes)
    fail(place, "sub-arrays of dynamic shared memory end at byte %zu, and the launch gives %zu", logical + bytes,
         shared.dynamic_bytes);
  if (shared.carvings == MAX_ARRAYS) fail(place, "more than %d sub-arrays of dynamic shared memory", MAX_ARRAYS);
  for (int i = 0; i < shared.carvings; ++i) {
    const SubArray& other = shared.carved[i];
    shared.overlaid |= start < other.start + other.bytes + RED_ZONE && other.start < start + bytes + RED_ZONE;
  }
  shared.carved[shared.carvings++] = {start, bytes, rounded(logical + bytes, 16)};
  close_zone(shared.base + start + bytes, dynamic_end());
  return shared.base + start;
}

// Gives out `count` elements of dynamic shared memory from `at`, and moves `at` behind them and a red zone. Where the
// code runs on a GPU, the kernel's own function of this name rounds up to 16 bytes and leaves no zone:
//   T* array = reinterpret_cast<T*>(at); at += (count * sizeof(T) + 15) / 16 * 16; return array;
template <class T>
CUDA_EMULATOR_RUNTIME T* carve(unsigned char*& at, size_t count, Place place = std::source_location::current()) {
  const size_t start = size_t((char*)at - shared.base), bytes = count * sizeof(T);
  size_t logical = start;  // what the offset is without red zones
  const SubArray* known = nullptr;
  for (int i = 0; i < shared.carvings; ++i) {
    const SubArray& other = shared.carved[i];
    if (other.start == start && other.bytes == bytes) known = &other;
    if (rounded(other.start + other.bytes, 16) + RED_ZONE == start) logical = other.logical_end;
    if (other.start == start) logical = other.logical_end - rounded(other.bytes, 16);
  }
  if (!known) new_sub_array(start, bytes, logical, place);
  open_zone(shared.base + start, bytes);
  at += rounded(bytes, 16) + RED_ZONE;
  close_zone(shared.base + start + bytes, (char*)at);
  return (T*)(shared.base + start);
}

CUDA_EMULATOR_RUNTIME inline bool touched(const char* start, const char* end) {
  for (const char* at = start; at < end; ++at)
    if (*at != char(0xff)) return true;
  return false;
}

// Tells of a write into a red zone, once a block has ended.
CUDA_EMULATOR_RUNTIME inline void check_zones() {
  CUDA_EMULATOR_ASAN(return;)
  char* fault = block.fault;
  if (fault[0]) return;
  for (int i = 0; i < shared.statics; ++i)
    if (touched(shared.zones[i].start, shared.zones[i].end))
      snprintf(fault, sizeof block.fault, "a write past the end of a static shared array (the %d. that block %u,%u,%u "
               "declares)", i + 1, block.index.x, block.index.y, block.index.z);
  for (int i = 0; i < shared.carvings && !shared.overlaid; ++i) {
    const SubArray& array = shared.carved[i];
    const char* end = shared.base + array.start + array.bytes;
    if (touched(end, shared.base + rounded(array.start + array.bytes, 16) + RED_ZONE))
      snprintf(fault, sizeof block.fault, "a write past the end of a sub-array of dynamic shared memory (the %d., of "
               "%zu bytes, of block %u,%u,%u)", i + 1, array.bytes, block.index.x, block.index.y, block.index.z);
  }
  if (!shared.carvings && touched(shared.base + shared.dynamic_bytes, dynamic_end()))
    snprintf(fault, sizeof block.fault, "a write past the end of dynamic shared memory, %zu bytes (block %u,%u,%u)",
             shared.dynamic_bytes, block.index.x, block.index.y, block.index.z);
}

}  // namespace cuda_emulator
