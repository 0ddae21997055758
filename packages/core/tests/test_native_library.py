"""What native code may read of a tensor: values that lie in this memory, in order."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from drivetrain_core.native_library import address_of
from drivetrain_core.services import unwritable


def fake():
    with FakeTensorMode():
        return torch.ones(8)


def freed():
    tensor = torch.ones(8)
    tensor.untyped_storage().resize_(0)
    return tensor


WITHOUT_MEMORY = {
    "fake": (fake, "of its own"),
    "wrapper": (lambda: TwoTensor(torch.ones(8), torch.ones(8)), "of its own"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(8)), "of its own"),
    "zero": (lambda: torch._efficientzerotensor(8), "of its own"),
    "freed": (freed, "it was freed"),
}
ELSEWHERE = {
    "meta": (lambda: torch.ones(8, device="meta"), "lies on meta"),
    "strided": (lambda: torch.ones(16)[::2], "side by side"),
    "expanded": (lambda: torch.ones(1).expand(8), "side by side"),
    "sparse": (lambda: torch.eye(8).to_sparse(), "sparse_coo"),
    "compressed": (lambda: torch.eye(8).to_sparse_csr(), "sparse_csr"),
    "mkldnn": (lambda: torch.eye(8).to_mkldnn(), "mkldnn"),
    "negative": (lambda: torch._neg_view(torch.ones(8)), "lazy view"),
    "conjugate": (lambda: torch.ones(8, dtype=torch.complex64).conj(), "lazy view"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("name", [*WITHOUT_MEMORY, *ELSEWHERE])
def test_tensor_whose_values_do_not_lie_here_in_order_is_named(name):
    make, why = (WITHOUT_MEMORY | ELSEWHERE)[name]
    with pytest.raises(TypeError, match=rf"^the gradient, a \w+ of shape .*{why}"):
        address_of(make(), "the gradient")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_nested_tensor_is_named():
    tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(2)])
    with pytest.raises(TypeError, match="a Tensor, is not dense, but nested"):
        address_of(tensor, "a tensor")


def test_values_that_lie_in_order_have_an_address():
    for tensor in (torch.ones(3), torch.ones(4, 3)[2:], torch.ones(0)):
        assert address_of(tensor, "a tensor") == tensor.data_ptr()


@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_what_has_no_memory_cannot_be_restored_in_place(name):
    make, why = WITHOUT_MEMORY[name]
    assert why in unwritable(make())
