"""The example program: a language model on source code."""

from __future__ import annotations

import sysconfig
from itertools import islice

import pytest
import torch

from drivetrain_core._data.cycle import cycle
from drivetrain_core.examples import byte_lm
from drivetrain_core.examples.byte_lm import ByteLM, ByteLMConfig, ByteText

SMALL = ByteLMConfig(num_layers=2, dim=32, num_heads=4, num_kv_heads=2, ffn_dim=48)


def num_parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_byte_lm_has_about_ten_million_parameters_by_default():
    with torch.device("meta"):
        model = ByteLM()
    assert 9.5e6 < num_parameters(model) < 10.5e6
    assert model.config == ByteLMConfig()


@pytest.mark.parametrize(("batch", "time"), [(1, 1), (2, 7), (3, 16)])
def test_byte_lm_returns_logits_of_every_byte_at_every_place(batch, time):
    logits = ByteLM(SMALL)(torch.zeros(batch, time, dtype=torch.long))
    assert logits.shape == (batch, time, 256)
    assert logits.dtype == torch.float32


def test_byte_lm_does_not_see_what_comes_later():
    model = ByteLM(SMALL)
    ids = torch.randint(0, 256, (2, 12))
    later = ids.clone()
    later[:, 8] = (later[:, 8] + 1) % 256
    before, after = model(ids), model(later)
    torch.testing.assert_close(before[:, :8], after[:, :8], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 8], after[:, 8])


def test_byte_lm_knows_the_order_of_bytes():
    model = ByteLM(SMALL)
    one, other = torch.tensor([[1, 2, 3]]), torch.tensor([[2, 1, 3]])
    assert not torch.allclose(model(one)[:, -1], model(other)[:, -1], atol=1e-5)


def test_byte_lm_trains_every_parameter():
    model = ByteLM(SMALL)
    ids = torch.randint(0, 256, (2, 8))
    byte_lm.loss(model(ids), (ids, ids)).backward()
    silent = [n for n, p in model.named_parameters() if not p.grad.abs().any()]
    assert silent == []


def test_byte_lm_starts_at_eight_bits_and_learns():
    torch.set_num_threads(1)
    model = ByteLM(SMALL)
    data = byte_lm.loader(b"abcdefgh" * 200, batch_size=8, length=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for batch in islice(cycle(data), 40):
        loss = byte_lm.loss(model(batch[0]), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(byte_lm.bits_per_byte(loss.item()))
    assert losses[0] == pytest.approx(8.0, abs=0.3)
    assert losses[-1] < 4.0


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small standard library, with what must be left out."""
    for name in ("a.py", "b.py", "pkg/c.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"# {name}\n" * 3)
    for name in ("test", "site-packages", "pkg/tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "left_out.py").write_text("LEFT OUT")
    (tmp_path / "notes.txt").write_text("LEFT OUT")
    for i in range(60):
        (tmp_path / f"module_{i:02d}.py").write_text(f"[{i:02d}]")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return tmp_path


def test_standard_library_is_split_by_file_without_a_rest(library):
    train, held_out = byte_lm.read_standard_library()
    files = [path.read_bytes() for path in sorted(library.rglob("*.py"))]
    wanted = [text for text in files if text != b"LEFT OUT"]
    assert len(wanted) == 63
    # Every file stands whole in one of the two.
    assert [(text in train) + (text in held_out) for text in wanted] == [1] * 63
    assert len(train) + len(held_out) == sum(map(len, wanted)) + 63 - 2
    assert 0 < len(held_out) < 0.2 * len(train)


def test_standard_library_is_read_the_same_each_time(library):
    def held_out():
        text = byte_lm.read_standard_library()[1]
        return {i for i in range(1, 60) if b"[%02d]" % i in text}

    first = held_out()
    assert held_out() == first != set()
    # A file's name alone decides, whatever stands beside it.
    (library / "module_00.py").unlink()
    (library / "added.py").write_text("new")
    assert held_out() == first


def test_standard_library_of_some_bytes_is_a_part_of_it(library):
    train, held_out = byte_lm.read_standard_library(max_bytes=100)
    assert 100 <= len(train) + len(held_out) < 150
    # Each part, however few of the first files are held out.
    assert 95 <= len(train) < 120
    assert 5 <= len(held_out) < 30
    for whole, part in zip(
        byte_lm.read_standard_library(), (train, held_out), strict=True
    ):
        assert whole.startswith(part)


@pytest.mark.slow
def test_standard_library_of_this_python_is_text_of_some_size():
    train, held_out = byte_lm.read_standard_library(max_bytes=2_000_000)
    assert len(train) + len(held_out) >= 1_900_000
    assert b"import" in train
    assert len(held_out) > 10_000


def test_byte_text_is_windows_with_targets_one_further():
    text = ByteText(bytes(range(10)), 3)
    assert len(text) == 3
    windows = [text[i] for i in range(3)]
    assert [x.tolist() for x, _ in windows] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [y.tolist() for _, y in windows] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize("size", [0, 1, 3])
def test_byte_text_shorter_than_a_window_is_an_error(size):
    with pytest.raises(ValueError, match=f"text of {size} bytes has no window of 3"):
        ByteText(bytes(size), 3)


def test_loader_yields_whole_batches_of_the_text():
    data = byte_lm.loader(bytes(range(50)), batch_size=4, length=5, shuffle=False)
    batches = list(data)
    assert len(data) == len(batches) == 2
    assert batches[0][0].tolist()[1] == [5, 6, 7, 8, 9]
    assert all(x.shape == y.shape == (4, 5) for x, y in batches)
