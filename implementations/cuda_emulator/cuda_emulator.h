// Runs a CUDA C++ file on the CPU. build.py includes this file in front of it and compiles it with g++: a block is a
// set of fibers that switch at barriers and warp collectives only, so a run is the same each time, and another seed is
// another order. Kernels may ask for the macro CUDA_EMULATOR; cuda_emulator::carve and cuda_emulator::mma_m16n8k16
// stand in for what a GPU has and C++ has not. See docs/cuda-emulator.md for what is not modelled.
#pragma once
#define CUDA_EMULATOR 1
#define __DEVICE_LAUNCH_PARAMETERS_H__  // its variables are macros here

#define __assert_fail cuda_emulator_assert_fail  // an assertion that fails is the kernel's fault, not the end of the process
#include <cassert>

#include "device.h"
#include "launch.h"

// build.py reads these words, then takes them out
#undef __shared__
#undef __global__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __maxnreg__
#define __maxnreg__(...)
#undef __constant__
#define __constant__
#undef __grid_constant__
#define __grid_constant__
