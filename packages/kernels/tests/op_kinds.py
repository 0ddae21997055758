"""The kinds of input that every op takes or refuses, each as calls that are compared."""

from functools import partial

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map

from drivetrain_core import DrivetrainError

__all__ = ["COMPILED", "KINDS", "cell", "is_asked", "outcome", "reasons"]

TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}


def leaves_of(tensors, dtype=torch.float64, wanted=True):
    return {
        name: tensor.detach().to(dtype).clone().requires_grad_(wanted)
        for name, tensor in tensors.items()
    }


def weighted(results):
    """A fixed weighting of results: one number."""
    total = 0.0
    for one in results:
        place = torch.arange(one.numel(), dtype=torch.float64).reshape(one.shape)
        total = total + (one * (1.7 * place).cos().to(one.dtype)).sum()
    return total


def differentiated(call, leaves, create_graph=False):
    """Results, and the gradients of a fixed weighting of them."""
    results = tree_leaves(call(**leaves))
    kept = [r for r in results if r.requires_grad]
    if not kept or not any(t.requires_grad for t in leaves.values()):
        return results
    total = weighted(kept)
    grads = torch.autograd.grad(
        total, list(leaves.values()), create_graph=create_graph, allow_unused=True
    )
    zeros = (torch.zeros_like(t) for t in leaves.values())
    return results + [z if g is None else g for g, z in zip(grads, zeros, strict=True)]


def near(found, wanted, dtype=torch.float64, scale=1.0):
    """Raises AssertionError unless both are alike, up to the rounding of a dtype."""
    found, wanted = tree_leaves(found), tree_leaves(wanted)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape, (one.shape, other.shape)
        one, other = (t.detach().double().flatten() for t in (one, other))
        missing = one.isnan()
        assert torch.equal(missing, other.isnan())
        apart = (one - other)[~missing].norm()
        bound = TOLERANCE[dtype] * scale * max(1.0, float(other[~missing].norm()))
        assert float(apart) <= bound, (float(apart), bound)


def of_dtype(dtype, case):
    """Results and gradients, against float64 of the same rounded tensors."""
    rounded = {n: t.to(dtype) for n, t in case.tensors.items()}
    wanted = differentiated(case.plain, leaves_of(rounded, wanted=case.differentiable))
    found = differentiated(
        case.call, leaves_of(rounded, dtype, wanted=case.differentiable)
    )
    yield "", lambda: near(found, wanted, dtype)


def _compared(case, change, tensors=None):
    """Both on tensors that were changed, with the gradients of those before."""
    tensors = case.tensors if tensors is None else tensors

    def changed(call, **leaves):
        return call(**change(leaves))

    leaves = leaves_of(tensors, wanted=case.differentiable)
    near(
        differentiated(partial(changed, case.call), leaves),
        differentiated(partial(changed, case.plain), leaves),
    )


def non_contiguous(case):
    def strided(tensor):
        wide = tensor.repeat_interleave(2, -1)[..., ::2]
        return wide.transpose(0, -1).contiguous().transpose(0, -1)

    for name in case.tensors:
        yield name, partial(_compared, case, lambda t, n=name: {**t, n: strided(t[n])})


def expanded(case):
    for name, tensor in case.tensors.items():
        for dim in range(tensor.dim()):

            def change(t, n=name, d=dim, size=tensor.shape):
                return {**t, n: t[n].narrow(d, 0, 1).expand(size)}

            yield f"{name}, dim {dim}", partial(_compared, case, change)


def empty(case):
    for places in case.empty:
        tensors = {
            n: t.narrow(places[n], 0, 0) if n in places else t
            for n, t in case.tensors.items()
        }
        label = ", ".join(f"{n} dim {d}" for n, d in places.items())
        yield label, partial(_empty_compared, case, tensors, places)


def _empty_compared(case, tensors, places):
    options = {}
    first = next(iter(places))
    if case.target is not None and places[first] < 2:
        shape = list(case.target.shape)
        shape[places[first]] = 0
        options["target"] = torch.zeros(shape, dtype=torch.int64)
    leaves = leaves_of(tensors, wanted=case.differentiable)
    found = differentiated(partial(case.call, **options), leaves)
    wanted = differentiated(
        partial(case.plain, **options), leaves_of(tensors, wanted=case.differentiable)
    )
    near(found, wanted)


def autocast(case):
    rounded = {n: t.bfloat16() for n, t in case.tensors.items()}
    wanted = differentiated(case.plain, leaves_of(rounded, wanted=case.differentiable))
    for label, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):

        def run(dtype=dtype):
            def call(**leaves):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return case.call(**leaves)

            found = differentiated(
                call, leaves_of(rounded, dtype, wanted=case.differentiable)
            )
            near(found, wanted, torch.bfloat16, 1.5)

        yield label, run


def inference(case):
    def run():
        wanted = case.plain(**case.tensors)
        with torch.inference_mode():
            within = {n: t.clone() for n, t in case.tensors.items()}
            near(case.call(**within), wanted)
            near(case.call(**case.tensors), wanted)
        # What was kept then must not be in the way afterwards.
        found = differentiated(
            case.call, leaves_of(case.tensors, wanted=case.differentiable)
        )
        near(
            found,
            differentiated(
                case.plain, leaves_of(case.tensors, wanted=case.differentiable)
            ),
        )
        with torch.no_grad():
            near(
                case.call(**leaves_of(case.tensors, wanted=case.differentiable)), wanted
            )

    yield "", run


def _second(call, tensors):
    leaves = leaves_of(tensors)
    made = differentiated(call, leaves, create_graph=True)
    grads = [g for g in made[-len(leaves) :] if g.requires_grad]
    again = [None] * len(leaves)
    if grads:
        total = weighted([g * g for g in grads])
        again = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    zeros = (torch.zeros_like(t) for t in leaves.values())
    return made + [z if g is None else g for g, z in zip(again, zeros, strict=True)]


def second_derivative(case):
    yield (
        "",
        lambda: near(
            _second(case.call, case.tensors), _second(case.plain, case.tensors)
        ),
    )


def _as_function(call, names):
    """A scalar of some of an op's tensors by position."""

    def function(*values):
        return weighted(tree_leaves(call(**dict(zip(names, values, strict=True)))))

    return function


def _transformed(case, transform, names):
    rest = {n: t for n, t in case.tensors.items() if n not in names}
    values = [case.tensors[n] for n in names]
    found = transform(_as_function(partial(case.call, **rest), names))(*values)
    near(found, transform(_as_function(partial(case.plain, **rest), names))(*values))


def func_grad(case):
    names = tuple(case.tensors)
    places = tuple(range(len(names)))
    for label, made in (
        ("grad", lambda f: torch.func.grad(f, places)),
        ("vjp", lambda f: lambda *v: torch.func.vjp(f, *v)[1](torch.ones(()).double())),
        (
            "grad of grad",
            lambda f: torch.func.grad(
                lambda *v: sum(
                    g.square().sum() for g in torch.func.grad(f, places)(*v)
                ),
                places,
            ),
        ),
    ):
        yield label, partial(_transformed, case, made, names)


def vmap(case):
    for name in case.tensors:

        def run(name=name):
            rest = {n: t for n, t in case.tensors.items() if n != name}
            many = torch.stack([case.tensors[name] * s for s in (1.0, 0.5)])
            found = torch.func.vmap(lambda t: case.call(**rest, **{name: t}))(many)
            each = [tree_leaves(case.plain(**rest, **{name: t})) for t in many]
            near(found, [torch.stack(parts) for parts in zip(*each, strict=True)])

        yield name, run
    if case.target is not None:

        def targets():
            many = torch.stack([case.target, case.target.flip(0)])
            found = torch.func.vmap(lambda t: case.call(**case.tensors, target=t))(many)
            each = [case.plain(**case.tensors, target=t) for t in many]
            near(found, torch.stack(each))

        yield "target", targets

    def every():
        many = {n: torch.stack([t, 0.5 * t], 1) for n, t in case.tensors.items()}
        found = torch.func.vmap(lambda v: case.call(**v), in_dims=1)(many)
        each = [
            tree_leaves(case.plain(**{n: t.select(1, i) for n, t in many.items()}))
            for i in range(2)
        ]
        near(found, [torch.stack(parts) for parts in zip(*each, strict=True)])

    yield "all", every


def vmap_grad(case):
    names = tuple(case.tensors)

    def run():
        many = [torch.stack([t, 0.5 * t]) for t in case.tensors.values()]
        places = tuple(range(len(names)))
        found = torch.func.vmap(
            torch.func.grad(_as_function(case.call, names), places)
        )(*many)
        wanted = [
            torch.func.grad(_as_function(case.plain, names), places)(
                *(m[i] for m in many)
            )
            for i in range(2)
        ]
        near(found, tree_map(lambda *p: torch.stack(p), *wanted))

    yield "", run


def jvp(case):
    for name in case.tensors:

        def made(f):
            def run(value):
                return torch.func.jvp(f, (value,), (torch.cos(value),))

            return run

        yield name, partial(_transformed, case, made, (name,))


def dual(case):
    def run(names):
        def tangents(call):
            with forward_ad.dual_level():
                given = {
                    n: forward_ad.make_dual(t, t.cos()) if n in names else t
                    for n, t in case.tensors.items()
                }
                results = tree_leaves(call(**given))
                pairs = [forward_ad.unpack_dual(r) for r in results]
                return [(p, torch.zeros_like(p) if t is None else t) for p, t in pairs]

        near(tangents(case.call), tangents(case.plain))

    for name in case.tensors:
        yield name, partial(run, (name,))
    yield "all", partial(run, tuple(case.tensors))


def jacobian(case):
    for label, made in (("jacrev", torch.func.jacrev), ("jacfwd", torch.func.jacfwd)):
        for name in case.tensors:
            yield f"{label} {name}", partial(_transformed, case, made, (name,))


class Named(torch.Tensor):
    """A subclass that changes nothing."""


def _subclass(case, change):
    leaves = leaves_of(case.tensors, wanted=case.differentiable)
    found = differentiated(lambda **t: case.call(**change(t)), leaves)
    near(
        [f.as_subclass(torch.Tensor) for f in found],
        differentiated(case.plain, leaves_of(case.tensors, wanted=case.differentiable)),
    )


def torch_function(case):
    for name in case.tensors:
        yield (
            name,
            partial(
                _subclass, case, lambda t, n=name: {**t, n: t[n].as_subclass(Named)}
            ),
        )
    yield (
        "all",
        partial(
            _subclass, case, lambda t: {n: v.as_subclass(Named) for n, v in t.items()}
        ),
    )


def two_tensor(case):
    from torch.testing._internal.two_tensor import TwoTensor

    def run():
        two = {
            n: TwoTensor(t.clone(), 0.5 * t).requires_grad_()
            for n, t in case.tensors.items()
        }
        found = tree_leaves(case.call(**two))
        total = sum(r.sum() for r in found if r.requires_grad)
        grads = []
        if case.differentiable:
            grads = torch.autograd.grad(total, list(two.values()))
        for part in ("a", "b"):
            leaves = {
                n: getattr(t, part).detach().clone().requires_grad_()
                for n, t in two.items()
            }
            results = tree_leaves(case.plain(**leaves))
            near([getattr(r, part) for r in found], results)
            if grads:
                wanted = torch.autograd.grad(
                    sum(r.sum() for r in results), list(leaves.values())
                )
                near([getattr(g, part) for g in grads], wanted)

    yield "", run


def large(case):
    def run():
        leaves = {
            n: torch.empty(shape, dtype=torch.bfloat16, device="meta").requires_grad_()
            for n, shape in case.large.items()
        }
        options = {}
        for name in ("logits", "hidden"):
            if name in leaves:
                shape = leaves[name].shape[:-1]
                options["target"] = torch.empty(shape, dtype=torch.int64, device="meta")
        results = tree_leaves(case.call(**leaves, **options))
        if case.differentiable:
            grads = torch.autograd.grad(
                sum(r.sum() for r in results), list(leaves.values())
            )
            assert [g.shape for g in grads] == [t.shape for t in leaves.values()]
            assert {g.dtype for g in grads} == {torch.bfloat16}
        first = next(iter(leaves.values()))
        assert max(t.numel() for t in leaves.values()) > 2**31
        assert {r.shape for r in results} <= {
            (),
            first.shape,
            first.shape[:-1],
            *(t.shape for t in leaves.values()),
        }

    yield "", run


def compiled(case, dynamic=False):
    def run():
        torch._dynamo.reset()
        call = torch.compile(
            case.call, fullgraph=True, dynamic=dynamic, backend="aot_eager"
        )
        wanted = differentiated(
            case.plain, leaves_of(case.tensors, wanted=case.differentiable)
        )
        near(
            differentiated(call, leaves_of(case.tensors, wanted=case.differentiable)),
            wanted,
        )
        near(call(**case.tensors), case.plain(**case.tensors))

    yield "", run


def sharded(case):
    """What this rank calls; with placements of tensors, of all or of some."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))

    def run(places):
        def change(leaves):
            return {
                n: distribute_tensor(t, mesh, [places[n]]) if n in places else t
                for n, t in leaves.items()
            }

        def whole(t):
            return t.full_tensor() if hasattr(t, "full_tensor") else t

        leaves = {
            n: t.requires_grad_(case.differentiable)
            for n, t in change(leaves_of(case.tensors, wanted=False)).items()
        }
        rest = {}
        if case.target is not None and next(iter(leaves)) in places:
            first = places[next(iter(leaves))]
            divided = first.is_shard() and first.dim < case.target.dim()
            place = first if divided else Replicate()
            rest["target"] = distribute_tensor(case.target, mesh, [place])

        def call(**tensors):
            return tree_map(whole, case.call(**tensors, **rest))

        made = differentiated(call, leaves)
        found = [whole(t) for t in made]
        near(
            found,
            differentiated(
                case.plain, leaves_of(case.tensors, wanted=case.differentiable)
            ),
        )

    names = tuple(case.tensors)
    yield "replicated", partial(run, dict.fromkeys(names, Replicate()))
    batch = {n: Shard(0) if n in case.batched else Replicate() for n in names}
    yield "sharded batch", partial(run, batch)
    for name, tensor in case.tensors.items():
        for dim in range(tensor.dim()):
            yield (
                f"{name} sharded in dim {dim}",
                partial(run, {**dict.fromkeys(names, Replicate()), name: Shard(dim)}),
            )
    if len(names) > 1:
        for name in names:
            yield f"only {name}", partial(run, {name: Replicate()})
            yield (
                f"all but {name}",
                partial(run, {n: Replicate() for n in names if n != name}),
            )


KINDS = {
    "float64": partial(of_dtype, torch.float64),
    "float32": partial(of_dtype, torch.float32),
    "float16": partial(of_dtype, torch.float16),
    "bfloat16": partial(of_dtype, torch.bfloat16),
    "not contiguous": non_contiguous,
    "expanded": expanded,
    "empty": empty,
    "autocast": autocast,
    "inference mode": inference,
    "second derivative": second_derivative,
    "func.grad": func_grad,
    "vmap": vmap,
    "vmap of grad": vmap_grad,
    "func.jvp": jvp,
    "dual tensors": dual,
    "jacobians": jacobian,
    "subclass": torch_function,
    "TwoTensor": two_tensor,
    "over 2^31": large,
    "compiled": compiled,
    "compiled, dynamic": partial(compiled, dynamic=True),
    "DTensor": sharded,
}
COMPILED = ("compiled", "compiled, dynamic")
_DERIVED = (
    "second derivative",
    "func.grad",
    "vmap of grad",
    "func.jvp",
    "dual tensors",
    "jacobians",
)


def is_asked(case, kind):
    """Whether a case can be of a kind: what has no gradient is not differentiated."""
    return case.differentiable or kind not in _DERIVED


def outcome(run):
    """What a call came to: "right", or "refused: ", "WRONG: " or "OBSCURE: " and why."""
    try:
        run()
    except AssertionError as error:
        return f"WRONG: {_line(error)}"
    except DrivetrainError as error:
        return f"refused: {_line(error)}"
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
        return f"OBSCURE: {type(error).__name__}: {_line(error)[:300]}"
    return "right"


def _line(error):
    return " ".join(str(error).split())


def cell(case, kind):
    """Outcomes of a kind of input, by what was tried."""
    found = {}
    try:
        for label, run in KINDS[kind](case):
            found[label] = outcome(run)
    except Exception as error:  # noqa: BLE001 (likewise)
        found[""] = outcome(partial(_raise, error))
    return found


def _raise(error):
    raise error


def reasons(found):
    """Short reasons of what a cell refuses, each with what was tried."""
    told = {}
    for label, text in found.items():
        if text.startswith("refused: "):
            told.setdefault(_reason(text[9:]), []).append(label)
    return told


def _reason(text):
    if " is a DTensor and " in text:
        return "one argument is a DTensor and another a plain tensor"
    if "' cannot take tensors of this kind" in text:
        return "torch has no rule for what it does"
    why = text.partition("cannot take this call: it ")[2] or text
    return why.partition(";")[0].partition(", got ")[0]
