"""Optional mirror of runs on Weights & Biases, which does not affect measurements or records."""
