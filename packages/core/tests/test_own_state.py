"""What modules and optimizers keep by hooks and overrides of their state is saved so."""

import functools
import io
import warnings

import pytest
import torch
from torch import nn

from drivetrain_core import CheckpointError
from drivetrain_core.services import DcpCheckpointer, pack_state


class Overriding(nn.Linear):
    """Keeps a number that is no tensor of the module."""

    def __init__(self, number=0):
        super().__init__(2, 2)
        self.number = number

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "number"] = torch.tensor(self.number)

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.number = int(state_dict.pop(prefix + "number"))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Hooked(nn.Linear):
    def __init__(self, number=0):
        super().__init__(2, 2)
        self.number = number
        self.register_state_dict_post_hook(self.add)
        self.register_load_state_dict_pre_hook(self.take)

    @staticmethod
    def add(module, state, prefix, _):
        state[prefix + "number"] = module.number

    @staticmethod
    def take(module, state, prefix, *_):
        module.number = state.pop(prefix + "number")


class Whole(nn.Linear):
    """Answers for itself, without any of torch's arguments."""

    def __init__(self, number=0):
        super().__init__(2, 2)
        self.number = number

    def state_dict(self):
        return {"both": self.weight.detach() * 2, "number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]
        with torch.no_grad():
            self.weight.copy_(state["both"] / 2)


class Bound(nn.Linear):
    """As some scripts do it: by a function that is put onto the module."""

    def __init__(self, number=0):
        super().__init__(2, 2)
        self.number = number
        self.state_dict = lambda: {
            "weight": self.weight.detach(),
            "number": self.number,
        }
        self.load_state_dict = self.take

    def take(self, state):
        self.number = state["number"]
        with torch.no_grad():
            self.weight.copy_(state["weight"])


KINDS = [Overriding, Hooked, Whole, Bound]


def moved(folder, saved, fresh, **options):
    DcpCheckpointer(folder).save(0, {"model": saved})
    DcpCheckpointer(folder).restore({"model": fresh}, **options)
    return fresh


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_puts_into_its_state_dict_comes_back(tmp_path, kind):
    saved, fresh = kind(7), kind()
    moved(tmp_path, saved, nn.DataParallel(fresh))
    assert fresh.number == 7
    assert torch.equal(fresh.weight, saved.weight)


@pytest.mark.parametrize("kind", [Overriding, Hooked])
def test_what_a_layer_puts_into_its_state_dict_comes_back(tmp_path, kind):
    saved, fresh = kind(7), kind()
    models = [nn.Sequential(nn.Linear(2, 2), layer) for layer in (saved, fresh)]
    moved(tmp_path, *models)
    assert fresh.number == 7
    assert torch.equal(fresh.weight, saved.weight)
    assert torch.equal(models[1][0].weight, models[0][0].weight)


def test_optimizer_finds_the_parameters_of_such_a_model(tmp_path):
    def trained(number):
        model = nn.Sequential(Hooked(number))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if number:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return {"model": model, "optimizer": optimizer}

    saved, fresh = trained(7), trained(0)
    DcpCheckpointer(tmp_path).save(0, saved)
    DcpCheckpointer(tmp_path).restore(fresh)
    (moments, *_), (again, *_) = (
        list(state["optimizer"].state.values()) for state in (saved, fresh)
    )
    assert torch.equal(moments["exp_avg"], again["exp_avg"])


def test_quantized_modules_come_back(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def quantized():
            model = nn.Sequential(nn.Linear(4, 3))
            return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})

        saved, fresh = quantized(), quantized()
        x = torch.ones(2, 4)
        assert not torch.equal(saved(x), fresh(x))
        moved(tmp_path, saved, fresh)
        assert torch.equal(saved(x), fresh(x))


def test_hooks_of_a_load_run_though_nothing_was_added(tmp_path):
    saved, fresh = nn.Linear(2, 2), nn.Linear(2, 2)
    told = []
    for model in (saved, fresh):
        model.register_load_state_dict_post_hook(
            lambda m, _: told.append(m.weight[0, 0])
        )
    moved(tmp_path, saved, fresh)
    assert told == [saved.weight[0, 0]]


def test_layers_of_torch_are_held_by_names_alone():
    model = nn.Sequential(
        nn.BatchNorm1d(2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    )
    assert pack_state({"model": model}).entries["model"].keys() == {
        "kind",
        "plain",
        "tensors",
    }


def test_model_without_hooks_is_told_of_the_state_that_it_would_lose(tmp_path):
    plain = nn.Linear(2, 2)
    before = plain.weight.detach().clone()
    with pytest.raises(
        CheckpointError, match="is a model here, but a model with hooks"
    ):
        moved(tmp_path, Hooked(7), plain)
    assert torch.equal(plain.weight, before)


def test_model_with_hooks_is_told_that_others_were_saved(tmp_path):
    fresh = nn.Linear(2, 2)
    fresh.register_load_state_dict_post_hook(lambda *_: None)
    with pytest.raises(
        CheckpointError, match=r"with hooks .* here, but a model in the"
    ):
        moved(tmp_path, nn.Linear(2, 2), fresh)


def test_key_that_nobody_takes_is_told(tmp_path):
    class Giving(nn.Linear):
        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "more"] = 3

    saved, fresh = Giving(2, 2), Giving(2, 2)
    with pytest.raises(CheckpointError, match=r'Unexpected key.*"more"'):
        moved(tmp_path, saved, fresh)
    moved(tmp_path, saved, fresh, strict=False)
    assert torch.equal(fresh.weight, saved.weight)


def test_tensor_that_a_module_has_not_is_told_before_anything_changes(tmp_path):
    saved, fresh = Overriding(7), Hooked(3)
    weight = fresh.weight.detach().clone()
    with pytest.raises(
        CheckpointError, match=r"'model\.number' is in the checkpoint, b"
    ):
        moved(tmp_path, saved, fresh)
    assert torch.equal(fresh.weight, weight)


def test_shape_that_does_not_fit_is_told_before_anything_changes(tmp_path):
    def model(width):
        made = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, width))
        made[1].register_state_dict_post_hook(
            lambda _, state, prefix, __: state.update({prefix + "n": 1})
        )
        made[1].register_load_state_dict_pre_hook(
            lambda _, state, prefix, *__: state.pop(prefix + "n")
        )
        return made

    saved, fresh = model(2), model(3)
    before = fresh[0].weight.detach().clone()
    with pytest.raises(
        CheckpointError, match=r"'model\.1\.weight' is \[3, 2\]"
    ) as caught:
        moved(tmp_path, saved, fresh)
    assert len(caught.value.mismatches) == 2  # the bias, too
    assert torch.equal(fresh[0].weight, before)
    DcpCheckpointer(tmp_path).restore({"model": fresh}, strict=False)
    assert torch.equal(fresh[0].weight, saved[0].weight)


def test_value_that_a_checkpoint_cannot_hold_is_refused_with_its_module(tmp_path):
    model = nn.Sequential(Hooked(object()))
    with pytest.raises(TypeError, match=r"^model\.0\.number is of type object"):
        DcpCheckpointer(tmp_path).save(0, {"model": model})


# Extra state


class Scaled(nn.Module):
    def __init__(self, scale=0.0):
        super().__init__()
        self.scale = scale

    def get_extra_state(self):
        stream = io.BytesIO()
        torch.save({"scale": self.scale}, stream)
        return stream

    def set_extra_state(self, state):
        self.position = state.tell()
        state.seek(0)
        self.scale = torch.load(state, weights_only=True)["scale"]


def test_extra_state_may_be_a_stream_of_bytes(tmp_path):
    saved = Scaled(7.0)
    fresh = moved(tmp_path, saved, Scaled())
    assert fresh.scale == 7.0
    assert fresh.position == saved.get_extra_state().tell()


def test_sparse_and_quantized_tensors_in_plain_data_come_back(tmp_path):
    sparse = torch.eye(3).to_sparse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
        DcpCheckpointer(tmp_path).save(0, {"data": [sparse, quantized]})
        into = {"data": None}
        DcpCheckpointer(tmp_path).restore(into)
    assert torch.equal(into["data"][0].to_dense(), torch.eye(3))
    assert torch.equal(into["data"][1].dequantize(), torch.ones(2))


class Allowed:
    def __init__(self, value):
        self.value = value


def test_object_is_held_while_its_class_is_allowed(tmp_path):
    with torch.serialization.safe_globals([Allowed]):
        DcpCheckpointer(tmp_path).save(0, {"data": [Allowed(3)], "x": torch.ones(1)})
        into = {"data": None}
        DcpCheckpointer(tmp_path).restore(into)
        assert into["data"][0].value == 3
    x = torch.zeros(1)
    with pytest.raises(
        CheckpointError, match=r"without leave: .*Allowed.*add_safe_globals"
    ):
        DcpCheckpointer(tmp_path).restore({"data": None, "x": x})
    assert x.item() == 0


# Tied weights


class Tied(nn.Module):
    def __init__(self, *, tied, turned=False):
        super().__init__()
        embed, out = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        names = [("embed", embed), ("out", out)]
        for name, module in reversed(names) if turned else names:
            setattr(self, name, module)
        if tied:
            self.out.weight = self.embed.weight


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_that_were_tied_come_back_under_each_name(tmp_path, tied, turned):
    saved = Tied(tied=True)
    fresh = moved(tmp_path, saved, Tied(tied=tied, turned=turned))
    assert torch.equal(fresh.out.weight, saved.embed.weight)
    assert torch.equal(fresh.embed.weight, saved.embed.weight)
    assert (fresh.out.weight is fresh.embed.weight) is tied


def test_one_of_two_tied_weights_is_enough(tmp_path):
    saved = Tied(tied=True)
    fresh = Tied(tied=False)
    del fresh.embed
    moved(tmp_path, saved, fresh)
    assert torch.equal(fresh.out.weight, saved.embed.weight)


def test_tie_that_does_not_fit_is_told_by_its_own_name(tmp_path):
    fresh = Tied(tied=False)
    fresh.out = nn.Linear(3, 5, bias=False)
    with pytest.raises(CheckpointError, match=r"^'model\.out\.weight' is \[5, 3\]"):
        moved(tmp_path, Tied(tied=True), fresh)


def test_weights_that_were_not_tied_are_not_tied_in_silence(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"'model\.out\.weight' is in the checkpoint"
    ):
        moved(tmp_path, Tied(tied=False), Tied(tied=True))


class Counting(torch.optim.SGD):
    """An optimizer that adds to its state dict by hooks."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.count = 0
        self.register_state_dict_post_hook(Counting.add)
        self.register_load_state_dict_pre_hook(Counting.take)

    def add(self, state):
        return {**state, "count": self.count}

    def take(self, state):
        self.count = state["count"]
        return {name: value for name, value in state.items() if name != "count"}


class Rebuilding(torch.optim.SGD):
    """An optimizer that makes something of the state that it loads."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.total = sum(s["momentum_buffer"].sum() for s in self.state.values())


def stepped(kind, steps):
    torch.manual_seed(steps)
    model = nn.Linear(2, 2)
    optimizer = kind(model.parameters())
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer}


def buffers(state):
    return [s["momentum_buffer"] for s in state["optimizer"].state.values()]


def test_hooks_of_an_optimizers_state_dict_are_used(tmp_path):
    saved, fresh = stepped(Counting, 3), stepped(Counting, 1)
    saved["optimizer"].count = 3
    DcpCheckpointer(tmp_path).save(0, saved)
    DcpCheckpointer(tmp_path).restore(fresh)
    assert fresh["optimizer"].count == 3
    assert all(map(torch.equal, buffers(fresh), buffers(saved)))


def test_optimizer_that_overrides_only_its_load_makes_of_it_what_it_does(tmp_path):
    kind = functools.partial(Rebuilding, lr=0.1, momentum=0.9)
    saved, fresh = stepped(kind, 3), stepped(kind, 1)
    DcpCheckpointer(tmp_path).save(0, saved)
    DcpCheckpointer(tmp_path).restore(fresh)
    assert fresh["optimizer"].total == sum(b.sum() for b in buffers(saved))
    assert all(map(torch.equal, buffers(fresh), buffers(saved)))
