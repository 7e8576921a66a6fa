"""A small GPT with PyTorch alone: a decoder on characters that learns to add, from lines as "27+58=85".

The result is written backwards, units first, as people add. The loss counts only the characters after "=".
"""

import numpy as np
import torch
from torch import nn

from trainmaster.zoo import Mode

CHARACTERS = "0123456789+= "
LENGTH = 9  # "99+99=198", filled up with blanks
WIDTH, HEADS, LAYERS = 64, 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        parts = self.joint(self.norms[0](x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.dense(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters, self.places = nn.Embedding(len(CHARACTERS), WIDTH), nn.Embedding(LENGTH - 1, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(CHARACTERS))

    def forward(self, codes):
        """Return scores (batch, length, characters) of the next one of each of the codes (batch, length)."""
        x = self.characters(codes) + self.places.weight[: codes.shape[1]]
        return self.scores(self.norm(self.blocks(x)))


def custom_model():
    return GPT()


def loss(labels, predictions):
    return nn.functional.cross_entropy(predictions.flatten(0, 1), labels.flatten(), ignore_index=-1)


def optimizer(parameters, lr=3e-3):
    return torch.optim.AdamW(parameters, lr)


def codes(line):
    """Return the codes of "27+58=58 ", of two digits each, the result backwards."""
    asked, result = line.split("=")
    left, right = asked.split("+")
    text = f"{left:>2}+{right:>2}={result[::-1]:<3}"
    return np.array([CHARACTERS.index(character) for character in text], np.int64)


def feed(dataset, mode, metadata):
    def parse(line):
        whole = codes(line)
        labels = np.where(np.arange(LENGTH - 1) >= LENGTH - 4, whole[1:], -1)  # behind "="
        return whole[:-1] if mode == Mode.PREDICTION else (whole[:-1], labels)

    dataset = dataset.map(parse)
    return dataset.shuffle(4096, seed=0) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    def right(labels, predictions):
        """Return 1 for each line whose whole result is right."""
        return ((predictions.argmax(-1) == labels) | (labels < 0)).all(1).float()

    return {"right": right}
