"""Ten small training programs of different kinds, each with a `DataLoader`."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as f
from torch.utils.data import DataLoader, Dataset

from drivetrain_core._program import Program
from drivetrain_core.examples import byte_lm


class Samples(Dataset):
    """Samples of random tensors: a tuple of them, or a mapping where there are names."""

    def __init__(self, *tensors, names=None):
        self.tensors, self.names = tensors, names

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        parts = tuple(tensor[index] for tensor in self.tensors)
        return dict(zip(self.names, parts, strict=True)) if self.names else parts


def loaded(batch_size, *tensors, names=None):
    generator = torch.Generator().manual_seed(0)
    return DataLoader(
        Samples(*tensors, names=names),
        batch_size=batch_size,
        shuffle=True,
        generator=generator,
    )


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def class_loss(output, batch):
    return f.cross_entropy(output, batch[1])


def square_loss(output, batch):
    return f.mse_loss(output, batch[1])


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def integers(high, *shape, seed=0):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


class Basic(nn.Module):
    """A residual block with statistics of the batch."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.one = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm_one = nn.BatchNorm2d(outer)
        self.two = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm_two = nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x):
        y = f.relu(self.norm_one(self.one(x)))
        return f.relu(self.norm_two(self.two(y)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 1, 1)
        widths = [(32, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 2)]
        self.stages = nn.Sequential(*(Basic(*width) for width in widths))
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


class Double(nn.Module):
    """Two convolutions with norms that do not depend on the batch."""

    def __init__(self, inner, outer):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inner, outer, 3, 1, 1),
            nn.GroupNorm(4, outer),
            nn.SiLU(),
            nn.Conv2d(outer, outer, 3, 1, 1),
            nn.GroupNorm(4, outer),
            nn.SiLU(),
        )

    def forward(self, x):
        return self.layers(x)


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.down = nn.ModuleList(
            [Double(3, width), Double(width, 2 * width), Double(2 * width, 4 * width)]
        )
        self.up = nn.ModuleList(
            [Double(6 * width, 2 * width), Double(3 * width, width)]
        )
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        one = self.down[0](x)
        two = self.down[1](f.max_pool2d(one, 2))
        three = self.down[2](f.max_pool2d(two, 2))
        y = self.up[0](torch.cat([f.interpolate(three, scale_factor=2.0), two], 1))
        y = self.up[1](torch.cat([f.interpolate(y, scale_factor=2.0), one], 1))
        return self.out(y)


class Scatter(nn.Module):
    """Messages along random edges, summed at their ends."""

    def __init__(self, nodes=64, dim=96, rounds=3):
        super().__init__()
        self.register_buffer("edges", integers(nodes, 2, 6 * nodes))
        self.rounds = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))
            for _ in range(rounds)
        )
        self.enter, self.out = nn.Linear(16, dim), nn.Linear(dim, 1)

    def forward(self, x):
        x = self.enter(x)
        source, target = self.edges
        for layer in self.rounds:
            message = layer(torch.cat([x[:, source], x[:, target]], -1))
            x = x + torch.zeros_like(x).index_add(1, target, message.to(x.dtype))
        return self.out(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self, vocab=256, dim=192):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim, num_layers=2, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])


def token_loss(output, batch):
    return f.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def mlp():
    layers = [nn.Sequential(nn.Linear(768, 768), nn.GELU()) for _ in range(5)]
    return nn.Sequential(nn.Linear(128, 768), *layers, nn.Linear(768, 10))


def encoder(dim, depth, heads=4):
    layer = nn.TransformerEncoderLayer(
        dim, heads, 4 * dim, dropout=0.1, activation="gelu", batch_first=True
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


class ViT(nn.Module):
    def __init__(self, dim=160, depth=4):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 4, 4)
        self.place = nn.Parameter(0.02 * random(1, 64, dim))
        self.body, self.head = encoder(dim, depth), nn.Linear(dim, 10)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.body(tokens).mean(1))


class Modulated(nn.Module):
    """A transformer block whose norms are steered by a condition."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.steer = nn.Linear(dim, 6 * dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.wide, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, c):
        a, b, g, d, e, h = self.steer(f.silu(c)).unsqueeze(1).chunk(6, -1)
        y = self.norm(x) * (1 + a) + b
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + g * self.proj(y)
        y = self.norm(x) * (1 + d) + e
        return x + h * self.narrow(f.gelu(self.wide(y), approximate="tanh"))


class DiT(nn.Module):
    def __init__(self, dim=160, depth=4):
        super().__init__()
        self.patches, self.time = nn.Linear(48, dim), nn.Linear(1, dim)
        self.blocks = nn.ModuleList(Modulated(dim) for _ in range(depth))
        self.out = nn.Linear(dim, 48)

    def forward(self, noisy, time):
        x, c = self.patches(noisy), self.time(time)
        for block in self.blocks:
            x = block(x, c)
        return self.out(x)


def denoise(model, batch):
    return model(batch["noisy"], batch["time"])


def noise_loss(output, batch):
    return f.mse_loss(output, batch["noise"])


class VisionLanguage(nn.Module):
    """Image tokens before text tokens, in one causal body."""

    def __init__(self, dim=160, depth=3, vocab=512):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 8, 8)
        self.embed = nn.Embedding(vocab, dim)
        self.body, self.head = encoder(dim, depth), nn.Linear(dim, vocab)

    def forward(self, image, text):
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([tokens, self.embed(text)], 1)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = self.body(x, mask=mask.to(x), is_causal=True)
        return self.head(x[:, tokens.shape[1] :])


def read(model, batch):
    return model(batch["image"], batch["text"])


def caption_loss(output, batch):
    return f.cross_entropy(output.flatten(0, 1), batch["labels"].flatten())


class Recommender(nn.Module):
    """Dense features and many embeddings, which interact by products."""

    def __init__(self, fields=12, rows=20_000, dim=32):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, dim) for _ in range(fields))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, dim))
        pairs = (fields + 1) * fields // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + dim, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        lower = torch.tril_indices(fields + 1, fields + 1, -1)
        self.register_buffer("lower", lower)

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        found = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        stacked = torch.stack([x, *found], 1)
        products = stacked @ stacked.transpose(1, 2)
        pairs = products[:, self.lower[0], self.lower[1]]
        return self.top(torch.cat([x, pairs], 1)).squeeze(1)


def recommend(model, batch):
    return model(batch["dense"], batch["sparse"])


def click_loss(output, batch):
    return f.binary_cross_entropy_with_logits(output, batch["clicked"])


def language_model():
    train, _ = byte_lm.read_standard_library(500_000)
    config = byte_lm.ByteLMConfig(
        num_layers=4, dim=192, num_heads=6, num_kv_heads=2, ffn_dim=512
    )
    return Program(
        model=partial(byte_lm.ByteLM, config),
        optimizer=adamw,
        data=byte_lm.loader(train, batch_size=8, length=128),
        loss=byte_lm.loss,
    )


def images(size, batch, model, optimizer, loss=class_loss):
    x = random(256, 3, size, size)
    y = integers(10, 256) if loss is class_loss else random(256, 3, size, size, seed=1)
    return Program(
        model=model, optimizer=optimizer, data=loaded(batch, x, y), loss=loss
    )


def diffusion():
    data = loaded(
        16,
        random(256, 64, 48),
        random(256, 1, seed=1),
        random(256, 64, 48, seed=2),
        names=("noisy", "time", "noise"),
    )
    return Program(
        model=DiT, optimizer=adamw, data=data, loss=noise_loss, forward=denoise
    )


def vision_language():
    text = integers(512, 256, 33)
    data = loaded(
        8,
        random(256, 3, 64, 64),
        text[:, :-1],
        text[:, 1:],
        names=("image", "text", "labels"),
    )
    return Program(
        model=VisionLanguage,
        optimizer=adamw,
        data=data,
        loss=caption_loss,
        forward=read,
    )


def recommender():
    data = loaded(
        256,
        random(4096, 13),
        integers(20_000, 4096, 12),
        integers(2, 4096).float(),
        names=("dense", "sparse", "clicked"),
    )
    return Program(
        model=Recommender,
        optimizer=adamw,
        data=data,
        loss=click_loss,
        forward=recommend,
    )


def plain(model, optimizer, batch, x, y, loss):
    return Program(
        model=model, optimizer=optimizer, data=loaded(batch, x, y), loss=loss
    )


def text_to_text(length=48):
    text = integers(256, 512, length + 1)
    return plain(Recurrent, adamw, 16, text[:, :-1], text[:, 1:], token_loss)


ZOO = {
    "language-model": language_model,
    "resnet": lambda: images(32, 16, ResNet, sgd),
    "u-net": lambda: images(48, 8, UNet, adamw, square_loss),
    "scatter": lambda: plain(
        Scatter, adamw, 16, random(512, 64, 16), random(512, 1, seed=1), square_loss
    ),
    "lstm": text_to_text,
    "mlp": lambda: plain(
        mlp, adamw, 64, random(4096, 128), integers(10, 4096), class_loss
    ),
    "vit": lambda: images(32, 16, ViT, adamw),
    "diffusion-transformer": diffusion,
    "vision-language": vision_language,
    "recommender": recommender,
}
