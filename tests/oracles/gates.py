"""Gates of GTrXL by the formulas of section 3.2 of Parisotto et al. 2019 (arXiv 1910.06764)."""

import torch


def gated(kind, weights, bias, x, y):
    """Return g(x, ReLU(y)) for x and y (E,), with weights (maps, E, E) that are applied to row vectors."""
    y = torch.clamp(y, min=0)

    def sigma(z):
        return 1 / (1 + torch.exp(-z))

    maps = [weight.T for weight in weights]
    if kind == "input":
        return sigma(maps[0] @ x) * x + y
    if kind == "output":
        return x + sigma(maps[0] @ x - bias) * y
    if kind == "highway":
        z = sigma(maps[0] @ x + bias)
        return z * x + (1 - z) * y
    if kind == "sigmoid_tanh":
        return x + sigma(maps[0] @ y - bias) * torch.tanh(maps[1] @ y)
    w_r, w_z, w_g, u_r, u_z, u_g = maps
    r = sigma(w_r @ y + u_r @ x)
    z = sigma(w_z @ y + u_z @ x - bias)
    return (1 - z) * x + z * torch.tanh(w_g @ y + u_g @ (r * x))
