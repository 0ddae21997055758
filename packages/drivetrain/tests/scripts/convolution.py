"""A convolution with batch norm and dropout, a schedule of learning rates, and clipping."""

import torch
from torch import nn

from drivetrain_core import accelerate

torch.manual_seed(1)
images, labels = torch.rand(256, 1, 12, 12), torch.randint(0, 4, (256,))
data = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images, labels), batch_size=16, shuffle=True
)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, padding=1),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Dropout(0.1),
    nn.Linear(128, 4),
)
accelerated = accelerate(
    model,
    lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    data,
    lambda output, batch: nn.functional.cross_entropy(output, batch[1]),
    scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
    max_grad_norm=1.0,
)
for batch in accelerated.loader:
    accelerated.train_step(batch)
