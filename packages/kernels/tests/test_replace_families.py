"""`replace` on real architectures: a training step before, with, and after it."""

import pytest
import torch

pytest.importorskip("transformers")

from families import FAMILIES, family

from drivetrain_kernels import replace

pytestmark = pytest.mark.extra

REFERENCE = dict.fromkeys(
    ("rms_norm", "layer_norm", "swiglu", "geglu", "cross_entropy"), "reference"
)


def step(model, batch):
    model.zero_grad()
    torch.manual_seed(0)
    loss = model(**batch).loss
    loss.backward()
    grads = {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }
    return loss.detach(), grads


def distance(ours, theirs):
    apart = sum(float((ours[n] - g).double().square().sum()) for n, g in theirs.items())
    norm = sum(float(g.double().square().sum()) for g in theirs.values())
    return (apart / norm) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_training_step_of_a_family_is_the_same(name):
    model, batch = family(name)
    loss, grads = step(model, batch)
    replacement = replace(model, REFERENCE)
    assert len(replacement.replaced) >= FAMILIES[name][3], str(replacement)
    replaced_loss, replaced_grads = step(model, batch)
    assert replaced_grads.keys() == grads.keys()
    torch.testing.assert_close(replaced_loss, loss, rtol=1e-6, atol=1e-6)
    assert distance(replaced_grads, grads) < 1e-5
    replacement.undo()
    again_loss, again_grads = step(model, batch)
    assert torch.equal(again_loss, loss)
    assert all(torch.equal(again_grads[n], g) for n, g in grads.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", "bert"])
def test_family_in_bfloat16_stays_as_near(name):
    model, batch = family(name)
    model.to(torch.bfloat16)
    loss, grads = step(model, batch)
    with replace(model, REFERENCE) as replacement:
        assert len(replacement.replaced) >= FAMILIES[name][3] - 2, str(replacement)
        replaced_loss, replaced_grads = step(model, batch)
    torch.testing.assert_close(replaced_loss, loss, rtol=2e-2, atol=2e-2)
    assert distance(replaced_grads, grads) < 5e-2


def test_family_under_autocast_is_the_same():
    model, batch = family("llama")
    with torch.autocast("cpu", torch.bfloat16):
        loss, grads = step(model, batch)
        replace(model, REFERENCE)
        replaced_loss, replaced_grads = step(model, batch)
    torch.testing.assert_close(replaced_loss, loss, rtol=1e-2, atol=1e-2)
    assert distance(replaced_grads, grads) < 3e-2


def test_causal_loss_is_replaced_with_all_that_it_takes():
    model, batch = family("llama")
    ids = batch["input_ids"]
    calls = [
        {"labels": ids.masked_fill(ids % 3 == 0, -100)},
        {"labels": ids, "num_items_in_batch": torch.tensor(9)},
        {"labels": ids, "shift_labels": ids.flip(-1)},
    ]
    expected = [model(input_ids=ids, **call).loss for call in calls]
    replacement = replace(model, {"cross_entropy": "reference"})
    assert [one.module for one in replacement.replaced] == ["loss of LlamaForCausalLM"]
    for call, loss in zip(calls, expected, strict=True):
        torch.testing.assert_close(model(input_ids=ids, **call).loss, loss)
    assert replace(model, {"cross_entropy": "reference"}).replaced == ()
    replacement.undo()
    assert "_loss_function" not in vars(model)


def test_loss_that_is_no_causal_one_is_left():
    model, _ = family("bert")
    assert not replace(model, {"cross_entropy": "reference"}).replaced
