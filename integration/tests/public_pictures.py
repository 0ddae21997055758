"""Public programs that see pictures."""

from __future__ import annotations

import types
from typing import Any

import torch
from public_cases import (
    EXAMPLES,
    LENGTH,
    SAMPLES,
    TUTORIALS,
    VOCABULARY,
    adam,
    classified,
    images,
    labels,
    likelihood,
    loader,
    noise,
    package,
    program,
    quiet,
    script,
    using,
)
from small_decoder import Case
from torch import nn
from torch.nn import functional


@program("pytorch/examples mnist")
def _() -> Case:
    return Case(
        model=quiet(script(f"{EXAMPLES}/mnist/main.py").Net()),
        optimizer=using(torch.optim.Adadelta, lr=1.0),
        data=images(28, channels=1),
        loss=likelihood,
    )


@program("pytorch/examples vae")
def _() -> Case:
    source = script(f"{EXAMPLES}/vae/main.py")
    data = loader(noise(1, 28, 28).sigmoid(), labels(10))
    return Case(
        model=source.VAE(),
        optimizer=adam(),
        data=data,
        loss=lambda output, batch: source.loss_function(
            output[0], batch[0], *output[1:]
        ),
    )


@program("kuangliu/pytorch-cifar ResNet")
def _() -> Case:
    source = package("kuangliu+pytorch-cifar", "models.resnet")
    return Case(
        model=source.ResNet(source.BasicBlock, [1, 1, 1, 1]),
        optimizer=using(torch.optim.SGD, lr=1e-3, momentum=0.9, weight_decay=5e-4),
        data=images(32),
        loss=classified,
    )


@program("pytorch/examples super_resolution")
def _() -> Case:
    return Case(
        model=script(f"{EXAMPLES}/super_resolution/model.py").Net(2),
        optimizer=adam(),
        data=loader(noise(1, 8, 8), noise(1, 16, 16, seed=7)),
        loss=lambda output, batch: functional.mse_loss(output, batch[1]),
    )


@program("pytorch/examples fast_neural_style")
def _() -> Case:
    folder = f"{EXAMPLES}/fast_neural_style/neural_style"
    utils = script(f"{folder}/utils.py")
    torch.manual_seed(3)
    # In place of VGG, whose weights are fetched.
    seen = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
    seen.requires_grad_(False)

    def loss(output: Any, batch: Any) -> torch.Tensor:
        y, x = utils.normalize_batch(output), utils.normalize_batch(batch[0])
        ours, theirs = seen(y), seen(x)
        content = functional.mse_loss(ours, theirs)
        grams = utils.gram_matrix(ours), utils.gram_matrix(theirs)
        return content + 10.0 * functional.mse_loss(*grams)

    return Case(
        model=script(f"{folder}/transformer_net.py").TransformerNet(),
        optimizer=adam(eps=1e-3),  # as for BYOL below
        data=loader(255 * noise(3, 16, 16).sigmoid(), labels(10), batch_size=4),
        loss=loss,
    )


def deep(ngpu: int = 1) -> Any:
    return script(f"{EXAMPLES}/dcgan/main.py", nz=8, ngf=4, ndf=4, nc=3)


@program("pytorch/examples dcgan, the discriminator")
def _() -> Case:
    return Case(
        model=deep().Discriminator(1),
        optimizer=adam(2e-4, betas=(0.5, 0.999)),
        data=loader(noise(3, 64, 64), labels(2).float()),
        loss=lambda output, batch: functional.binary_cross_entropy(output, batch[1]),
    )


@program("pytorch/examples dcgan, the generator")
def _() -> Case:
    torch.manual_seed(3)
    judge = deep().Discriminator(1).requires_grad_(False).eval()

    def loss(output: Any, batch: Any) -> torch.Tensor:
        return functional.binary_cross_entropy(judge(output), batch[1])

    return Case(
        model=deep().Generator(1),
        optimizer=adam(2e-4, betas=(0.5, 0.999)),
        data=loader(noise(8, 1, 1), torch.ones(SAMPLES)),
        loss=loss,
    )


@program("rosinality/vq-vae-2-pytorch")
def _() -> Case:
    package("rosinality+vq-vae-2-pytorch", "distributed")
    source = package("rosinality+vq-vae-2-pytorch", "vqvae")
    # Its own sum over ranks is left out: `accelerate` decides what ranks do.
    source.dist_fn = types.SimpleNamespace(all_reduce=lambda tensor: tensor)
    model = source.VQVAE(
        channel=16, n_res_block=1, n_res_channel=8, embed_dim=8, n_embed=16
    )
    return Case(
        model=model,
        optimizer=adam(3e-4),
        data=images(16),
        loss=lambda output, batch: (
            functional.mse_loss(output[0], batch[0]) + 0.25 * output[1].mean()
        ),
    )


@program("lucidrains/vit-pytorch ViT")
def _() -> Case:
    source = script("lucidrains+vit-pytorch/vit_pytorch/vit.py")
    model = source.ViT(
        image_size=16,
        patch_size=8,
        num_classes=10,
        dim=16,
        depth=2,
        heads=2,
        mlp_dim=32,
        dim_head=8,
    )
    return Case(model=model, optimizer=adam(), data=images(16), loss=classified)


@program("lucidrains/vit-pytorch SimpleViT")
def _() -> Case:
    source = script("lucidrains+vit-pytorch/vit_pytorch/simple_vit.py")
    model = source.SimpleViT(
        image_size=16,
        patch_size=8,
        num_classes=10,
        dim=16,
        depth=2,
        heads=2,
        mlp_dim=32,
        dim_head=8,
    )
    return Case(model=model, optimizer=adam(), data=images(16), loss=classified)


@program("lucidrains/denoising-diffusion-pytorch")
def _() -> Case:
    folder = "denoising_diffusion_pytorch"
    source = package(f"lucidrains+{folder.replace('_', '-')}", f"{folder}.{folder}")
    net = source.Unet(dim=8, dim_mults=(1, 2), attn_heads=2, attn_dim_head=8)
    model = source.GaussianDiffusion(net, image_size=8, timesteps=20)
    return Case(
        model=model,
        optimizer=adam(betas=(0.9, 0.99)),
        data=loader(noise(3, 8, 8).sigmoid(), labels(10)),
        loss=None,
        max_grad_norm=1.0,
    )


@program("lucidrains/byol-pytorch")
def _() -> Case:
    source = script("lucidrains+byol-pytorch/byol_pytorch/byol_pytorch.py")
    small = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    model = source.BYOL(
        small,
        16,
        projection_size=16,
        projection_hidden_size=32,
        augment_fn=nn.Identity(),
        augment_fn2=nn.Hardtanh(),
        use_simplicial_embeddings=False,
        sync_batchnorm=False,
    )
    # Biases before BatchNorm have gradients of rounding alone, which Adam makes steps of.
    optimizer = adam(3e-4, eps=1e-4)
    return Case(model=model, optimizer=optimizer, data=images(16), loss=None)


@program("yunjey/pytorch-tutorial deep_residual_network")
def _() -> Case:
    source = script(f"{TUTORIALS}/deep_residual_network/main.py")
    return Case(
        model=source.ResNet(source.ResidualBlock, [1, 1, 1]),
        optimizer=adam(1e-3),
        data=images(32),
        loss=classified,
    )


@program("facebookresearch/DiT")
def _() -> Case:
    source = script("facebookresearch+DiT/models.py")
    model = source.DiT(
        input_size=4,
        hidden_size=24,
        depth=2,
        num_heads=2,
        class_dropout_prob=0.0,
        num_classes=10,
        learn_sigma=False,
    )
    return Case(
        model=model,
        optimizer=using(torch.optim.AdamW, lr=1e-3, weight_decay=0.0),
        data=loader(noise(4, 4, 4), labels(1000), labels(10), noise(4, 4, 4, seed=9)),
        forward=lambda m, batch: m(*batch[:3]),
        loss=lambda output, batch: functional.mse_loss(output, batch[3]),
    )


@program("facebookresearch/mae")
def _() -> Case:
    # A name that newer NumPy has not.
    package("facebookresearch+mae", "util.pos_embed").np.float = float
    source = script("facebookresearch+mae/models_mae.py")
    # Its Block was given an argument that newer timm has not.
    block = source.Block
    source.Block = lambda *args, qk_scale=None, **options: block(*args, **options)
    model = source.MaskedAutoencoderViT(
        img_size=16,
        patch_size=4,
        embed_dim=16,
        depth=2,
        num_heads=2,
        decoder_embed_dim=16,
        decoder_depth=2,
        decoder_num_heads=2,
    )
    source.Block = block
    return Case(
        model=model,
        optimizer=using(torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.95)),
        # Nothing is masked, since ranks would draw other masks.
        data=loader(noise(3, 16, 16), noise(16, 48, seed=9)),
        forward=lambda m, batch: m(batch[0], mask_ratio=0.0)[1],
        loss=lambda output, batch: functional.mse_loss(output, batch[1]),
    )


@program("openai/CLIP")
def _() -> Case:
    model = script("openai+CLIP/clip/model.py").CLIP(
        16, 16, 2, 64, 8, LENGTH, VOCABULARY, 16, 2, 2
    )

    def loss(output: Any, _: Any) -> torch.Tensor:
        right = torch.arange(len(output[0]))
        return (
            functional.cross_entropy(output[0], right)
            + functional.cross_entropy(output[1], right)
        ) / 2

    return Case(
        model=model,
        optimizer=adam(5e-4, betas=(0.9, 0.98), eps=1e-6),
        data=loader(noise(3, 16, 16), labels(VOCABULARY, LENGTH)),
        forward=lambda m, batch: m(batch[0], batch[1]),
        loss=loss,
    )


@program("ritheshkumar95/pytorch-vqvae")
def _() -> Case:
    package("ritheshkumar95+pytorch-vqvae", "functions")
    source = script("ritheshkumar95+pytorch-vqvae/modules.py")

    def loss(output: Any, batch: Any) -> torch.Tensor:
        made, encoded, quantized = output
        return (
            functional.mse_loss(made, batch[0])
            + functional.mse_loss(quantized, encoded.detach())
            + functional.mse_loss(encoded, quantized.detach())
        )

    return Case(
        model=source.VectorQuantizedVAE(3, 16, 16),
        optimizer=adam(2e-4),
        data=images(16),
        loss=loss,
    )
