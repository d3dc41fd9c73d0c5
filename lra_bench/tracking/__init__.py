"""A mirror of runs on Weights & Biases: never needed, never in the way of what is measured."""
