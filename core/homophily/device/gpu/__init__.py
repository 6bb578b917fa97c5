"""What runs on a GPU: the sparse products, the linear solution, the engines and the optimisers, over CuPy.

Here is only what a GPU wants to do differently: sums of fixed order in kernels of our own, and few moments at which the
host waits for the device. A fit sends its data once, works on the device, and fetches its result.
"""
