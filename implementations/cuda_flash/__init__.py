"""FlashAttention in plain CUDA C++: the kernels (`flash.cu` and the headers that it includes) and their backend."""
