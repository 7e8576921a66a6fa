"""Stand in for PyTorch's tutorial: one process that trains a small network."""

import torch

net = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(20):
    loss = torch.nn.functional.cross_entropy(net(torch.randn(16, 64)), torch.randint(0, 10, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
