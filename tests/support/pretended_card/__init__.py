"""Training steps of real systems on a CUDA device that does not exist, to find errors that only a GPU would show.

``device`` adds a device without kernels to the CPU build of torch; it must run before torch is imported. ``stand_ins``
replaces the functions that ask the driver, and those whose implementation depends on the GPU. ``placement`` moves a
model and a batch to fake tensors, which have a shape, a type and a device but no data. ``watch`` observes every
operator. ``steps`` runs the training steps and an evaluation; ``pricing`` estimates the cost of a step. All of it runs
in a process of its own: ``python -m tests.support.pretended_card`` reads the cases from standard input.

The numbers in tensors, limits of kernels and memory are not checked.
"""
