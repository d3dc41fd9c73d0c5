"""Training steps of real systems on a fake CUDA device, to find errors on a CPU that only a GPU would show.

``device`` adds a CUDA device without kernels to the CPU build of torch; it must run before torch is imported.
``replacements`` replaces functions of torch that call the driver, or whose implementation depends on the GPU.
``placement`` moves a model and a batch to fake tensors, which have a shape, a type and a device but no data. ``watch``
observes every operator. ``steps`` runs training steps and an evaluation; ``cost`` estimates the cost of a step. They
run in a process of their own: ``python -m tests.support.fake_cuda`` reads the cases from standard input.

The numbers in tensors, limits of kernels and memory are not checked.
"""
