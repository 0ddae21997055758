"""Ops: equal to the CPU's, whatever the arguments look like."""

import threading

import pytest

torch = pytest.importorskip("torch")
control = pytest.importorskip("drivetrain_simulated_accelerator.control")

pytestmark = pytest.mark.simulated_accelerator


def matrix():
    return torch.arange(12.0).view(3, 4) / 7


CASES = {
    "empty": lambda x: x[:0] + 1,
    "scalar": lambda x: x[0, 0] * 2,
    "zero-dim sum": lambda x: x.sum() + x.mean(),
    "transposed": lambda x: x.t() @ x,
    "strided": lambda x: x[::2, 1::2].exp(),
    "expanded": lambda x: x[0].expand(5, 4) + 1,
    "conjugated": lambda x: torch.complex(x, x).conj() * 2,
    "negative bit": lambda x: torch.complex(x, x).conj().imag + 1,
    "in-place on a view": lambda x: x.clone()[1].add_(3),
    "flip": lambda x: x.flip(0, 1),
    "cat of parts": lambda x: torch.cat([x, x[:1], x[:0]]),
    "type promotion": lambda x: x.int() + 1.5,
    "integer": lambda x: x.int() % 3,
    "comparison": lambda x: (x > 0.5) & (x < 1),
    "where": lambda x: torch.where(x > 0.5, x, -x),
    "mask": lambda x: x[x > 0.5],
    "index": lambda x: x[torch.tensor([2, 0], device=x.device)],
    "host index": lambda x: x[torch.tensor([2, 0])],
    "index_put": lambda x: x.clone().index_put_(
        (torch.tensor([1], device=x.device),), torch.tensor(9.0)
    ),
    "nonzero": lambda x: (x > 0.5).nonzero(),
    "unique": lambda x: (x * 2).int().unique(),
    "sort": lambda x: x.sort(descending=True).values,
    "topk": lambda x: x.topk(2).indices,
    "cumsum": lambda x: x.cumsum(1),
    "split": lambda x: torch.cat(x.split([1, 3], dim=1), dim=1),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (4,)),
    "gelu": torch.nn.functional.gelu if hasattr(torch, "nn") else None,
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "matmul bf16": lambda x: x.bfloat16() @ x.t().bfloat16(),
    "svd": lambda x: torch.linalg.svdvals(x),
    "fft": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "arange": lambda x: torch.arange(0, 2, 0.25, device=x.device),
    "linspace": lambda x: torch.linspace(0, 1, 7, device=x.device),
    "tril": lambda x: torch.ones(4, 4, device=x.device).tril(),
    "one_hot": lambda x: torch.nn.functional.one_hot((x[0] * 3).long(), 5),
    "conv": lambda x: torch.nn.functional.conv1d(x[None], torch.ones_like(x)[None]),
    "pool": lambda x: torch.nn.functional.max_pool1d(x[None], 2),
    "foreach": lambda x: torch._foreach_add([x, x[:1]], 1.5)[1],
    "view of bytes": lambda x: x.view(torch.int32) + 0,
    "unfold": lambda x: x.unfold(1, 2, 1).contiguous(),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "mse_loss": lambda x: torch.nn.functional.mse_loss(x, x + 1),
    "all": lambda x: (x >= 0).all(dim=(0, 1)),
    "channels last": lambda x: (
        x.view(1, 3, 2, 2).to(memory_format=torch.channels_last).mul(2)
    ),
    "embedding": lambda x: torch.nn.functional.embedding((x[0] * 2).long(), x),
    "bincount": lambda x: (x * 2).int().flatten().bincount(),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=0),
    "scatter": lambda x: x.scatter_add(0, (x > 9).long(), x),
}


@pytest.mark.parametrize("name", CASES)
def test_op_equals_the_cpus(name):
    run = CASES[name]
    wanted = run(matrix())
    x = matrix().to("sim")
    # The first call runs at once, the second one on the stream.
    for _ in range(2):
        found = run(x)
        assert found.is_sim
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert found.stride() == wanted.stride()
        assert torch.equal(found.cpu(), wanted)


def test_out_argument_grows_and_keeps_its_identity():
    for _ in range(2):
        out = torch.empty(0, device="sim")
        result = torch.add(matrix().to("sim"), 1, out=out)
        assert result is out
        assert torch.equal(out.cpu(), matrix() + 1)


def test_out_argument_that_is_strided_is_written_in_place():
    base = torch.zeros(3, 8, device="sim")
    torch.mul(matrix().to("sim"), 2, out=base[:, ::2])
    assert torch.equal(base[:, ::2].cpu(), matrix() * 2)
    assert base[:, 1::2].abs().sum().item() == 0


@pytest.fixture
def library():
    library = torch.library.Library("sim_test", "FRAGMENT")
    yield library
    library._destroy()


def test_op_that_returns_its_argument_or_a_part_of_it(library):
    library.define("part(Tensor(a) x) -> Tensor(a)")
    library.define("same(Tensor x) -> Tensor")
    library.impl("part", lambda x: x[1:, ::2], "CPU")
    library.impl("same", lambda x: x, "CPU")
    x = matrix().to("sim")
    for _ in range(2):
        part, same = torch.ops.sim_test.part(x), torch.ops.sim_test.same(x)
        assert torch.equal(part.cpu(), x.cpu()[1:, ::2])
        assert part.stride() == (4, 2)
        part.fill_(5)
        assert torch.equal(same.cpu(), x.cpu())
        assert x[1, 0].item() == 5


def test_kernel_in_python_runs_on_the_stream(library):
    threads = []

    def double(x):
        threads.append(threading.get_native_id())
        return x * 2

    library.define("double(Tensor x) -> Tensor")
    library.impl("double", double, "CPU")
    x = matrix().to("sim")
    for _ in range(3):
        found = torch.ops.sim_test.double(x)
        torch.sim.synchronize()
        assert torch.equal(found.cpu(), matrix() * 2)
    assert threads[0] == threading.get_native_id()
    assert threads[1] == threads[2] != threads[0]


def test_new_floats_are_no_new_shapes():
    x = matrix().to("sim")
    x.mul(0.5)
    before = control.counters()["synchronous_ops"]
    for factor in range(20):
        x.mul_(1.0 + factor)
        torch._foreach_mul_([x], 1.0 / (1.0 + factor))
    after = control.counters()["synchronous_ops"]
    assert after - before <= 2


def test_linspace_and_arange_are_queued_once_known():
    for _ in range(2):
        before = control.counters()["synchronous_ops"]
        torch.arange(5, device="sim")
    assert control.counters()["synchronous_ops"] == before


def test_tensors_of_two_devices_are_refused():
    a, b = torch.ones(2, device="sim:0"), torch.ones(2, device="sim:1")
    with pytest.raises(RuntimeError, match="sim:0 and sim:1"):
        a + b
    with pytest.raises(RuntimeError, match="sim:0 and cpu"):
        a + torch.ones(2)
    assert (a + torch.tensor(2.0)).sum().item() == 6


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_layouts_that_the_device_lacks_are_refused_by_name():
    x = matrix().to("sim")
    with pytest.raises(NotImplementedError, match=r"aten::_to_sparse.*layout Sparse"):
        x.to_sparse()
    with pytest.raises(NotImplementedError, match=r"_sparse_coo.*layout Sparse"):
        torch.sparse_coo_tensor(
            torch.tensor([[0]], device="sim"), torch.ones(1, device="sim"), (2,)
        )
    with pytest.raises(NotImplementedError, match=r"quantize_per_tensor.*Quantized"):
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


def test_op_without_a_kernel_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="aten::_cudnn_init_dropout_state"):
        torch._cudnn_init_dropout_state(0.5, True, 1, dtype=torch.float32, device="sim")


def test_composite_kernels_do_not_hide_the_cpus():
    names = torch._C._dispatch_get_all_op_names()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    hidden = [
        name
        for name in names
        if name.startswith("aten::")
        and has(name, "CPU")
        and (
            has(name, "CompositeExplicitAutograd")
            or has(name, "CompositeImplicitAutograd")
        )
    ]
    assert sorted(hidden) == control.ops_with_composites()
    assert "aten::native_layer_norm" in hidden
    assert all(has(name, "PrivateUse1") for name in hidden)


def test_autocast_casts_what_cpu_autocast_does():
    names = torch._C._dispatch_get_all_op_names()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    of_cpu = [name for name in names if name.startswith("aten::")]
    of_cpu = [name for name in of_cpu if has(name, "AutocastCPU")]
    assert sorted(of_cpu) == control.autocast_ops()


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x @ x.t(),
        lambda x: torch.nn.functional.linear(x, x),
        lambda x: torch.nn.functional.mse_loss(x.bfloat16(), x.bfloat16()),
        lambda x: torch.cat([x, x.bfloat16()]),
        lambda x: x.softmax(-1),
        lambda x: torch.nn.functional.layer_norm(x.bfloat16(), (4,)),
        lambda x: torch.nn.functional.cross_entropy(
            x, torch.tensor([0, 1, 2], device=x.device)
        ),
    ],
    ids=["matmul", "linear", "mse_loss", "cat", "softmax", "layer_norm", "loss"],
)
def test_autocast_equals_the_cpus(run):
    with torch.autocast("cpu", torch.bfloat16):
        wanted = run(matrix())
    with torch.autocast("sim", torch.bfloat16):
        found = run(matrix().to("sim"))
    assert found.dtype == wanted.dtype
    assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_and_their_gradients_are_near_the_cpus(kind, bias):
    torch.manual_seed(0)
    on_host = getattr(torch.nn, kind)(4, 5, bias=bias)
    on_device = getattr(torch.nn, kind)(4, 5, bias=bias).to("sim")
    on_device.load_state_dict(on_host.state_dict())
    x = torch.randn(3, 2, 4)
    results = []
    for model, device in ((on_host, "cpu"), (on_device, "sim")):
        value = x.clone().to(device).requires_grad_()
        output, _ = model(value)
        output.square().sum().backward()
        gradients = [p.grad.cpu() for p in model.parameters()]
        results.append([output.detach().cpu(), value.grad.cpu(), *gradients])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("kind", ["conv", "transposed", "batch norm"])
def test_convolutions_and_their_gradients_equal_the_cpus(kind):
    torch.manual_seed(0)
    models = {
        "conv": lambda: torch.nn.Conv2d(2, 4, 3, padding=1, groups=2),
        "transposed": lambda: torch.nn.ConvTranspose2d(2, 3, 3, stride=2, bias=False),
        "batch norm": lambda: torch.nn.BatchNorm2d(2),
    }
    on_host, on_device = models[kind](), models[kind]().to("sim")
    on_device.load_state_dict(on_host.state_dict())
    x = torch.randn(2, 2, 6, 6)
    results = []
    for model, device in ((on_host, "cpu"), (on_device, "sim")):
        value = x.clone().to(device).requires_grad_()
        output = model(value)
        output.square().sum().backward()
        gradients = [p.grad.cpu() for p in model.parameters()]
        results.append([output.detach().cpu(), value.grad.cpu(), *gradients])
    for found, wanted in zip(results[1], results[0], strict=True):
        assert torch.equal(found, wanted)


def test_compiled_function_equals_the_cpus():
    def run(x):
        return torch.nn.functional.gelu(x @ x.t()).sum()

    compiled = torch.compile(run, backend="aot_eager")
    x = matrix().to("sim").requires_grad_()
    y = matrix().requires_grad_()
    compiled(x).backward()
    run(y).backward()
    assert torch.equal(x.grad.cpu(), y.grad)


def test_op_names_count_what_ran():
    before = control.op_names().get("aten::tanh.out", 0)
    matrix().to("sim").tanh()
    assert control.op_names()["aten::tanh.out"] == before + 1


def test_result_that_changes_its_size_for_a_moment_is_right_under_delays():
    x, y = torch.randn(8, 4), torch.randn(8, 4)
    expected = torch.nn.functional.mse_loss(x, y)
    for _ in range(2):
        found = torch.nn.functional.mse_loss(x.to("sim"), y.to("sim"))
        assert torch.equal(found.cpu(), expected)
    with control.delays(op_us=2000):
        for _ in range(5):
            found = torch.nn.functional.mse_loss(x.to("sim"), y.to("sim"))
            assert torch.equal(found.cpu(), expected)
