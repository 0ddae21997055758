"""Windows: which keys are seen, and that no others cost anything."""

import pytest
import torch
from attention_cases import attend_by_loops, qkv
from kernel_checks import as_exact_as, same
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drivetrain_kernels import DtypeError, OptionError, attention, explain
from drivetrain_kernels.ops import _attention_band as bands
from drivetrain_kernels.ops._attention_band import Band, MaskCache, resolve_band

SIZES = [(70, 70), (33, 70), (1, 40), (1, 1), (97, 97)]
WINDOWS = [1, 7, 40, 500, (3, 5), (0, 9)]


@pytest.mark.parametrize("impl", ["blocked", "sdpa", "reference"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_attention_window_equals_its_definition(impl, window, causal):
    for num_queries, num_keys in SIZES:
        same(
            lambda *t: attention(*t, causal=causal, window=window, impl=impl),
            lambda *t: attend_by_loops(*t, causal=causal, window=window),
            qkv(num_queries, num_keys, heads=(4, 2)),
        )


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
@pytest.mark.parametrize("window", [(None, 4), (4, None)])
def test_attention_window_may_be_open_on_one_side(impl, window):
    same(
        lambda *t: attention(*t, causal=False, window=window, impl=impl),
        lambda *t: attend_by_loops(*t, causal=False, window=window),
        qkv(20, 30),
    )


@pytest.mark.parametrize("impl", ["blocked", "reference"])
def test_attention_window_caps_scores(impl):
    same(
        lambda *t: attention(*t, window=5, softcap=1.5, impl=impl),
        lambda *t: attend_by_loops(*t, window=5, softcap=1.5),
        qkv(70, 70),
    )


@pytest.mark.parametrize("impl", ["blocked", "sdpa", "reference"])
@pytest.mark.parametrize("num_keys", [0, 40])
def test_attention_window_of_a_query_that_sees_no_key_is_zero(impl, num_keys):
    q, k, v = (t.requires_grad_() for t in qkv(70, num_keys))
    out = attention(q, k, v, window=5, impl=impl)
    blind = 70 - num_keys
    assert torch.equal(out[:, :blind], torch.zeros_like(out[:, :blind]))
    out.sum().backward()
    assert not q.grad.isnan().any()
    if num_keys:
        wanted = attend_by_loops(q[:, blind:], k, v, window=5)
        torch.testing.assert_close(out[:, blind:], wanted)
    else:
        assert k.grad is None


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"num_queries": 0}])
def test_attention_window_of_nothing_is_nothing(sizes):
    q, k, v = qkv(**sizes)
    assert attention(q, k, v, window=3, impl="blocked").shape == q.shape


def test_attention_window_of_narrow_tensors_is_as_exact_as_torch():
    as_exact_as(
        lambda *t: attention(*t, window=20, impl="blocked"),
        lambda *t: attention(*t, window=20, impl="sdpa"),
        lambda *t: attention(*t, window=20, impl="reference"),
        qkv(100, 100, dim=32),
    )


@pytest.mark.slow
def test_attention_window_compiles_without_a_break():
    def call(q, k, v):
        return attention(q, k, v, window=8, impl="blocked")

    same(torch.compile(call, fullgraph=True, backend="aot_eager"), call, qkv(70, 70))


def test_attention_window_is_blocked_where_it_is_short():
    q, k, v = qkv(256, 256, batch=1)
    assert explain("attention", q, k, v, window=8).implementation == "blocked"
    assert explain("attention", q, k, v, window=200).implementation == "sdpa"


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operator made."""

    found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [
            t.untyped_storage().nbytes()
            for t in tree_leaves(result)
            if torch.is_tensor(t)
        ]
        self.found = max(self.found, *sizes, 0)
        return result


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention_window_memory_grows_with_the_sequence_alone(softcap):
    found = []
    for length in (512, 1024):
        tensors = [t.requires_grad_() for t in qkv(length, length, batch=1)]
        bands.MASKS.clear()
        with Largest() as largest:
            attention(
                *tensors, window=8, softcap=softcap, impl="blocked"
            ).sum().backward()
        found.append(largest.found)
    assert found[1] <= 2.1 * found[0]


def test_attention_window_masks_are_kept():
    bands.MASKS.clear()
    q, k, v = qkv(70, 70)
    with torch.inference_mode():
        attention(q, k, v, window=8, impl="blocked")
        attention(q, k, v, window=8, impl="sdpa")
    kept = bands.MASKS.num_bytes
    assert kept > 0
    q.requires_grad_()  # a mask that was made for inference serves for training
    attention(q, k, v, window=8, impl="blocked").sum().backward()
    attention(q, k, v, window=8, impl="sdpa").sum().backward()
    assert bands.MASKS.num_bytes == kept


def test_mask_cache_drops_what_was_used_longest_ago():
    made = []

    def make(size):
        def mask():
            made.append(size)
            return torch.zeros(size, dtype=torch.bool)

        return mask

    cache = MaskCache(max_bytes=10)
    for size in (4, 5, 4, 3, 4, 5, 40):
        assert len(cache.get(size, make(size))) == size
        assert cache.num_bytes <= 10
    assert made == [4, 5, 3, 5, 40]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, -3, (-1, 2)], ids=str)
def test_attention_window_must_hold_the_query(causal, window):
    q, k, v = qkv()
    with pytest.raises(OptionError, match=r"^attention: .*window must be >= [01]"):
        attention(q, k, v, causal=causal, window=window)


def test_band_of_options():
    assert resolve_band(True, None) == Band(left=None, right=0)
    assert resolve_band(True, 1) == Band(left=0, right=0)
    assert resolve_band(True, (2, 3)) == Band(left=2, right=0)
    assert resolve_band(False, 3) == Band(left=2, right=2)
    assert resolve_band(False, None).is_full


def test_attention_keeps_no_mask_of_a_fake_mode():
    q = torch.randn(1, 41, 2, 4)
    with FakeTensorMode():
        fake = torch.randn(1, 41, 2, 4)
        attention(fake, fake, fake, window=3)
    assert type(attention(q, q, q, window=3)) is torch.Tensor


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("window must be a whole number, got 2.5", {"window": 2.5}),
        ("window must be a whole number, got 'x'", {"window": "x"}),
        ("each side of window must be a whole number", {"window": (1.5, 2)}),
        ("window must be a number or two", {"window": (1, 2, 3)}),
        ("scale must be a number", {"scale": "x"}),
        ("softcap must be a number", {"softcap": "x"}),
        ("dropout_p must be a number", {"dropout_p": None}),
    ],
    ids=str,
)
def test_attention_refuses_options_of_another_kind(message, options):
    q = torch.ones(1, 4, 1, 2)
    with pytest.raises(OptionError, match=message):
        attention(q, q, q, **options)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_attention_refuses_what_is_no_tensor(place):
    call = [torch.ones(1, 4, 1, 2)] * 3
    call[place] = None
    with pytest.raises(DtypeError, match=f"{'qkv'[place]} must be a tensor"):
        attention(*call)


def test_attention_of_one_last_query_makes_no_mask():
    q, k, _ = qkv(1, 30)
    bands.MASKS.clear()
    torch.testing.assert_close(attention(q, k, k), attention(q, k, k, impl="reference"))
    assert bands.MASKS.num_bytes == 0
