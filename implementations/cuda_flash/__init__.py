"""FlashAttention in plain CUDA C++: the kernels, `flash.cu` and the headers it includes, and the backend `cuda_flash`."""
