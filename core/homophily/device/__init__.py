"""Where a fit computes: the CPU or a GPU (``backend``), what runs on a GPU (``gpu``) and its CUDA kernels."""
