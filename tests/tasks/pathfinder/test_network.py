"""Test that a small network cannot distinguish generated Pathfinder pictures from the original's.

Pictures drawn without the border rule can be distinguished.
"""

import numpy as np
import pytest
import torch
from torch import nn

from lra_bench.tasks.pathfinder.generation import draw_pictures
from lra_bench.tasks.pathfinder.parameters import published
from tests.support.pathfinder_originals import originals

EPOCHS, BATCH = 12, 50


def network():
    layers, channels = [], 1
    for width in (16, 32, 64):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(channels * 16, 64), nn.ReLU(), nn.Linear(64, 2)
    )


def held_out_accuracy(generated, original):
    """Train a network to distinguish two sets on their first halves, and return its accuracy on the second halves."""
    torch.manual_seed(0)
    half = len(original) // 2
    pixels = [torch.from_numpy(part).float()[:, None] / 128 - 0.5 for part in (generated, original)]
    train = torch.cat([part[:half] for part in pixels])
    test = torch.cat([part[half:] for part in pixels])
    labels = torch.arange(2).repeat_interleave(half)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, EPOCHS * len(train) // BATCH)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(train)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        train_accuracy, accuracy = (
            (model(part).argmax(dim=1) == labels).float().mean().item() for part in (train, test)
        )
    assert train_accuracy > 0.7, "the network did not fit its training pictures"
    return accuracy


@pytest.mark.long
def test_network_cannot_distinguish_generated_pictures(shared_data):
    original = originals(shared_data, 32, "hard")[0]
    p = published(32, "hard")
    order = np.random.default_rng(0).permutation(len(original))
    accuracy = held_out_accuracy(draw_pictures(p, 7, 0, len(original)).pixels, original[order])
    assert accuracy <= 0.55
    accuracy_without_rule = held_out_accuracy(
        draw_pictures(p, 7, 0, len(original), border_rule=False).pixels, original[order]
    )
    assert accuracy_without_rule >= 0.9
