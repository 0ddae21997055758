"""The example programs: what they compute, and that each runs to its end."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from optimizer_examples import byte_lm, digits, large_batch, trajectories
from optimizer_examples._adabelief import AdaBelief
from optimizer_examples._program import table
from optimizer_examples._resnet import ResNet
from optimizer_examples._runs import Runs, mean_and_deviation, or_infinite
from optimizer_examples._schedule import factor_of
from optimizer_examples._sharpness import largest_eigenvalue, sharpness
from optimizer_examples._tuning import climb

from drivetrain_core import MissingLibraryError

NAMES = ("trajectories", "digits", "byte_lm", "large_batch")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_importing_the_examples_imports_no_torch():
    code = "import sys, optimizer_examples; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_importing_an_example_imports_no_optional_library(name):
    code = (
        f"import sys, optimizer_examples.{name}; "
        "sys.exit(bool({'matplotlib', 'sklearn'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize("name", NAMES)
def test_quick_example_writes_a_table_a_plot_and_its_runs(name, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    if name == "digits":
        pytest.importorskip("sklearn")
    example = importlib.import_module(f"optimizer_examples.{name}")
    assert example.main(["--quick", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert all(m.label in told.out for m in example.METHODS.values())
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / f"{name}.json").read_text()
    found = json.loads(first)
    assert {row["method"] for row in found["table"]} == set(example.METHODS)
    # Runs are not mixed with others unasked.
    assert example.main(["--quick", "--out", str(tmp_path)]) == 1
    assert "holds runs: go on with them by --resume" in capsys.readouterr().err
    # Everything is there already: nothing runs again, and the table is the same.
    assert example.main(["--quick", "--resume", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr() == (told.out, "")
    assert (tmp_path / f"{name}.json").read_text() == first


@pytest.mark.parametrize("name", NAMES)
def test_example_without_matplotlib_says_what_to_install(
    name, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    example = importlib.import_module(f"optimizer_examples.{name}")
    assert example.main(["--quick", "--out", str(tmp_path / "out")]) == 1
    line = 'the plot needs matplotlib: pip install "./integration/examples/optimizers[plot]"'
    assert capsys.readouterr() == ("", f"error: {line}\n")
    assert not (tmp_path / "out").exists()


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    line = 'the digits need scikit-learn: pip install "./integration/examples/optimizers[plot]"'
    with pytest.raises(MissingLibraryError, match=re.escape(line)):
        digits.Images(digits.QUICK)


@pytest.mark.parametrize("argv", [["--qui"], ["--methods", "adan"], ["more"]])
def test_example_turns_down_options_that_it_does_not_know(argv, capsys):
    with pytest.raises(SystemExit, match="2"):
        trajectories.main(argv)
    assert "usage: optimizer_examples.trajectories" in capsys.readouterr().err


@pytest.mark.extra
def test_example_leaves_the_runs_of_another_setup_alone(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file = tmp_path / "trajectories.json"
    file.write_text('{"setup": {"steps": 7}}')
    assert trajectories.main(["--quick", "--resume", "--out", str(tmp_path)]) == 1
    assert "holds runs of another setup" in capsys.readouterr().err
    assert file.read_text() == '{"setup": {"steps": 7}}'


def test_runs_are_done_once_and_kept_between_processes(tmp_path, capsys):
    file = tmp_path / "new" / "runs.json"
    calls = []

    def run():
        calls.append(1)
        return {"loss": 0.25, "diverged": math.nan, "curve": (1, math.inf)}

    first = Runs(file, {"rates": (1, 2)}).do("a", run)
    assert "a" in capsys.readouterr().err
    assert Runs(file, {"rates": (1, 2)}).do("a", run) == first
    assert len(calls) == 1
    assert first["loss"] == 0.25
    assert (first["diverged"], first["curve"]) == (None, [1, None])
    assert first["seconds"] >= 0
    with pytest.raises(ValueError, match="another setup"):
        Runs(file, {"rates": (1, 3)})


def test_mean_and_deviation_are_of_a_sample():
    assert mean_and_deviation([2.0, 4.0]) == (3.0, pytest.approx(math.sqrt(2)))
    mean, deviation = mean_and_deviation([5.0])
    assert mean == 5.0
    assert math.isnan(deviation)
    assert all(map(math.isnan, mean_and_deviation([1.0, None])))
    assert or_infinite(None) == math.inf


@pytest.mark.parametrize("start", [-3, 0, 4, 9])
def test_climb_finds_the_minimum_from_anywhere_and_brackets_it(start):
    calls = []

    def score(k):
        calls.append(k)
        return abs(k - 4), 0.0

    best, tried = climb(score, start)
    assert best == 4
    assert {3, 4, 5} <= set(tried)
    assert sorted(calls) == tried


def test_climb_looks_as_far_beyond_the_best_as_asked():
    bumpy = {-1: 3.0, 0: 1.0, 1: 2.0, 2: 0.5}
    assert climb(lambda k: bumpy.get(k, 4.0), 0)[0] == 0
    best, tried = climb(lambda k: bumpy.get(k, 4.0), 0, reach=2)
    assert (best, tried) == (2, [-2, -1, 0, 1, 2, 3, 4])


def test_climb_walks_past_diverged_points():
    best, tried = climb(lambda k: math.inf if k > 0 else float(-k), 0)
    assert best == 0
    assert tried == [-1, 0, 1]


def test_program_gives_its_threads_back(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    torch.set_num_threads(2)
    assert trajectories.main(["--out", str(tmp_path)]) == 1
    assert torch.get_num_threads() == 2


def test_schedule_rises_and_falls():
    factors = [factor_of(step, 100, 0.1) for step in range(100)]
    assert factors[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(factors[10:]))
    assert 0 < factors[-1] < 0.001


def test_table_aligns_its_columns():
    lines = table(["name", "a"], [["x", "1"], ["longer", "23"]]).splitlines()
    assert lines == ["name     a", "x        1", "longer  23"]


def test_adabelief_is_its_recurrence():
    beta1, beta2, eps, lr = 0.8, 0.95, 1e-6, 0.1
    start, grads = [0.5, -2.0], [[1.0, -3.0], [0.5, 0.0], [-0.25, 2.0], [1e-4, 1.0]]
    param = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = AdaBelief([param], lr, (beta1, beta2), eps)
    expected = list(start)
    m, s = [0.0, 0.0], [0.0, 0.0]
    for t, grad in enumerate(grads, 1):
        param.grad = torch.tensor(grad, dtype=torch.float64)
        optimizer.step()
        for i, g in enumerate(grad):
            m[i] = beta1 * m[i] + (1 - beta1) * g
            s[i] = beta2 * s[i] + (1 - beta2) * (g - m[i]) ** 2 + eps
            shat, mhat = s[i] / (1 - beta2**t), m[i] / (1 - beta1**t)
            expected[i] -= lr * mhat / (math.sqrt(shat) + eps)
        assert param.tolist() == pytest.approx(expected, rel=1e-12)


def test_adabelief_calls_its_closure():
    param = torch.nn.Parameter(torch.tensor([1.0]))
    idle = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = AdaBelief([param, idle])

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 1.0
    assert param.item() < 1.0
    assert idle.item() == 1.0


@pytest.mark.parametrize(
    "eigenvalues", [[5.0, 2.0, 1.0, -1.0], [2.0, 1.5, -6.0, 0.0], [-1.0, -2.0, -4.0]]
)
def test_largest_eigenvalue_of_a_known_matrix(eigenvalues):
    size = len(eigenvalues)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(size, size, dtype=torch.float64, generator=generator)
    q, _ = torch.linalg.qr(noise)
    matrix = q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ q.T
    start = torch.ones(size, dtype=torch.float64)
    found = largest_eigenvalue(
        lambda v: matrix @ v, start, tolerance=1e-9, max_products=500
    )
    assert found == pytest.approx(max(eigenvalues), abs=1e-4)


def test_largest_eigenvalue_of_zero_is_zero():
    assert largest_eigenvalue(torch.zeros_like, torch.ones(3)) == 0.0


def test_sharpness_is_of_the_hessian_in_evaluation_mode():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    ).double()
    model(torch.randn(8, 3, dtype=torch.float64))  # Statistics other than 0 and 1.
    x = torch.randn(16, 3, dtype=torch.float64)
    names = [name for name, _ in model.named_parameters()]
    sizes = [param.numel() for param in model.parameters()]
    shapes = [param.shape for param in model.parameters()]
    state = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def loss_of(flat):
        parts = [p.view(s) for p, s in zip(flat.split(sizes), shapes, strict=True)]
        values = dict(zip(names, parts, strict=True))
        return torch.func.functional_call(model, values, (x,)).square().mean()

    found = sharpness(model, lambda m: m(x).square().mean())
    assert model.training
    assert all(param.grad is None for param in model.parameters())
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, state[name])
    flat = torch.cat([param.detach().flatten() for param in model.parameters()])
    model.eval()
    hessian = torch.autograd.functional.hessian(loss_of, flat)
    largest = torch.linalg.eigvalsh(hessian).max().item()
    assert found == pytest.approx(largest, rel=0.02)


@pytest.mark.parametrize("name", trajectories.FUNCTIONS)
def test_test_function_is_zero_and_flat_at_its_minimum(name):
    function = trajectories.FUNCTIONS[name]
    point = torch.tensor(function.minimum, dtype=torch.float64, requires_grad=True)
    value = function.value(*point)
    (grad,) = torch.autograd.grad(value, point)
    assert value.item() == pytest.approx(0.0, abs=1e-12)
    assert grad.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)
    hessian = torch.autograd.functional.hessian(lambda p: function.value(*p), point)
    assert torch.linalg.eigvalsh(hessian).min() > 0


def test_paths_of_all_starts_are_those_of_each_alone():
    function = trajectories.FUNCTIONS["beale"]
    setup = trajectories.Setup(steps=5, num_starts=3)
    for method in trajectories.METHODS.values():
        paths = trajectories.follow(function, method, lr=0.01, seed=0, setup=setup)
        assert paths.shape == (6, 4, 2)
        assert paths[0, 0].tolist() == list(function.start)
        point = torch.nn.Parameter(paths[0, 2].clone())
        optimizer = method.make([point], 0.01)
        for step in range(5):
            optimizer.zero_grad()
            function.value(*point).backward()
            optimizer.step()
            torch.testing.assert_close(point.detach(), paths[step + 1, 2])


def test_path_is_judged_by_where_it_stays():
    function = trajectories.FUNCTIONS["rastrigin"]
    setup = trajectories.Setup(steps=4, num_starts=4, tolerance=0.1)
    path = torch.zeros(5, 5, 2, dtype=torch.float64)
    path[:, 0, 0] = torch.tensor([3.0, 0.05, 0.2, 0.05, 0.01])
    path[:2, 2, 1] = 4.0
    path[-1, 3, 1] = math.nan
    path[:, 4, 0] = 1.0
    found = trajectories.judge(path, function, setup)
    assert found["steps"] == 3
    assert found["distance"] == pytest.approx(0.01)
    assert (found["share"], found["median_steps"]) == (0.5, 1.0)
    path[-1] = 0.3
    lost = trajectories.judge(path, function, setup)
    assert (lost["steps"], lost["share"], lost["median_steps"]) == (None, 0.0, math.inf)


@pytest.fixture
def text():
    return byte_lm.Corpus(byte_lm.QUICK)


def test_every_batch_size_reads_the_same_windows_in_the_same_order(text):
    small = torch.cat([inputs for inputs, _ in text.batches(1, 8)])
    large = torch.cat([inputs for inputs, _ in text.batches(1, 32)])
    assert torch.equal(small, large)
    assert len(small) == byte_lm.QUICK.num_windows
    other = torch.cat([inputs for inputs, _ in text.batches(2, 8)])
    assert not torch.equal(small, other)


@pytest.mark.slow
def test_validation_and_test_text_are_apart(text):
    windows = {tuple(row) for row in text.validation[0].tolist()}
    assert len(text.validation[0]) == len(text.test[0]) == byte_lm.QUICK.num_held_out
    assert not windows & {tuple(row) for row in text.test[0].tolist()}


def test_byte_lm_run_repeats_and_tells_divergence(text):
    method = byte_lm.METHODS["agd-1e-8"]
    first = byte_lm.train(text, method, exponent=-8, growth=1, seed=3)
    assert byte_lm.train(text, method, exponent=-8, growth=1, seed=3) == first
    assert first["curve"][-1] < first["curve"][0] < 8.5
    diverged = byte_lm.train(text, method, exponent=120, growth=1, seed=3)
    assert diverged["test"] == math.inf


def test_learning_rate_rises_over_as_many_steps_at_every_batch(text):
    text.setup = replace(large_batch.QUICK, warmup=1 / 8)
    rates = {}
    for growth in (1, 4):
        seen = []

        class Recorded(torch.optim.SGD):
            def step(self, seen=seen):
                seen.append(self.param_groups[0]["lr"])

        method = replace(large_batch.METHODS["lamb"], make=Recorded)
        byte_lm.train(text, method, exponent=0, growth=growth, seed=1)
        rates[growth] = seen
    assert (len(rates[1]), len(rates[4])) == (16, 4)
    assert rates[1][:3] == rates[4][:3] == [0.5, 1.0, 1.0]


def test_norms_take_neither_decay_nor_trust_ratio(text):
    model = byte_lm.ByteLM(text.setup.config)
    optimizer = large_batch.METHODS["lamb"].make(model.parameters(), 1.0)
    matrices, vectors = optimizer.param_groups
    assert {p.ndim for p in matrices["params"]} == {2}
    assert {p.ndim for p in vectors["params"]} == {1}
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    norm = model.norm.weight.detach().clone()
    optimizer.step()
    # The first step of LAMB without a ratio is one learning rate in each coordinate.
    assert torch.allclose(norm - model.norm.weight, torch.ones_like(norm), atol=1e-3)


@pytest.fixture
def images():
    pytest.importorskip("sklearn")
    return digits.Images(digits.Setup())


@pytest.mark.extra
def test_digits_keep_training_validation_and_test_apart(images):
    assert len(images.test[1]) == 997
    (train, labels), (validation, _) = images.draw(5, 0.0)
    assert (len(train), len(validation)) == (500, 300)
    again = images.draw(5, 0.0)[0]
    assert torch.equal(again[0], train)
    assert torch.equal(again[1], labels)
    assert not torch.equal(images.draw(6, 0.0)[0][0], train)
    parts = [
        {tuple(image.flatten().tolist()) for image in part}
        for part in (train, validation, images.test[0])
    ]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


@pytest.mark.extra
def test_digits_have_the_asked_share_of_wrong_labels(images):
    right = images.draw(5, 0.0)
    noisy = images.draw(5, 0.3)
    assert torch.equal(right[0][0], noisy[0][0])
    assert int((right[0][1] != noisy[0][1]).sum()) == 150
    assert torch.equal(right[1][1], noisy[1][1])


@pytest.mark.extra
def test_sharpness_aware_methods_take_half_the_steps(images, monkeypatch):
    passes, steps = [], []
    forward = ResNet.forward

    def counted(self, x):
        if torch.is_grad_enabled() and self.training:
            passes.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(ResNet, "forward", counted)
    images.setup = digits.QUICK
    for name in ("sgdm", "wsam"):
        method = digits.METHODS[name]
        digits.train(images, method, noise=0.0, lr=0.01, seed=1000)
        steps.append(len(passes))
        passes.clear()
    assert steps == [digits.QUICK.passes] * 2
