# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain import ad
from sparsetrain.embedding import RaggedTensor
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.ops import ragged
from sparsetrain.ops.ragged import operators
from tests.helpers import UNOPTIMIZED, slow_except

WIDTH, DISTANCES, COUNTS = 6, 12, (3, 0, 1, 17, 9)
ENDS = np.cumsum(COUNTS)
N = int(ENDS[-1])
STARTS = ENDS - COUNTS
PLACES, PLACE_ENDS = np.array([2, 0, 2, 0, 16, 8]), np.array([3, 3, 4, 5, 6])


def rows(x):
    return [x[start:end] for start, end in zip(STARTS, ENDS, strict=True)]


def of_rows(function):
    return lambda x, **_: np.stack(
        [function(row) if len(row) else np.zeros(WIDTH) for row in rows(x)]
    )


def attention(heads, causal, scaled=False):
    def reference(x, k, v, factors, **_):
        out, size = np.zeros_like(x), WIDTH // heads
        for start, end in zip(STARTS, ENDS, strict=True):
            for h in range(heads):
                part = slice(start, end), slice(h * size, (h + 1) * size)
                scores = x[part] @ k[part].T / np.sqrt(size)
                scores[np.triu(np.ones(scores.shape, bool), 1) & causal] = -np.inf
                weights = np.exp(scores - scores.max(axis=1, initial=-1e9, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                if scaled:
                    places = np.minimum(np.arange(end - start), DISTANCES - 1)
                    weights *= factors[start:end, h * DISTANCES + places]
                out[part] = weights @ v[part]
        return out

    return reference


def silu_attention(heads):
    def reference(x, k, v, bias, **_):
        out, size = np.zeros_like(x), WIDTH // heads
        for start, end in zip(STARTS, ENDS, strict=True):
            for i in range(start, end):
                for j in range(start, i + 1):
                    for h in range(heads):
                        part = slice(h * size, (h + 1) * size)
                        s = x[i, part] @ k[j, part] + bias[i, min(i - j, DISTANCES - 1)]
                        out[i, part] += 0.1 * s / (1 + np.exp(-s)) * v[j, part]
        return out

    return reference


# Name -> the operator, and the same in NumPy.
CASES = {
    "sum": (lambda a: ragged.ragged_sum(a["x"], a["ends"]), of_rows(lambda r: r.sum(axis=0))),
    "max": (lambda a: ragged.ragged_max(a["x"], a["ends"]), of_rows(lambda r: r.max(axis=0))),
    "last": (lambda a: ragged.ragged_last(a["x"], a["ends"]), of_rows(lambda r: r[-1])),
    "nonempty": (
        lambda a: ragged.ragged_nonempty(a["rows"], a["ends"]),
        lambda rows, **_: rows * (np.array(COUNTS) > 0)[:, None],
    ),
    "take": (
        lambda a: ragged.ragged_take(a["x"], a["ends"], a["places"], a["place_ends"]),
        lambda x, **_: x[np.repeat(STARTS, np.diff(PLACE_ENDS, prepend=0)) + PLACES],
    ),
    "expand": (
        lambda a: ragged.ragged_expand(nn.op.wrap_nested(a["rows"], "r")._expr, a["ends"], a["x"]),
        lambda rows, **_: np.repeat(rows, COUNTS, axis=0),
    ),
    **{
        f"attention of {heads} heads{', causal' * causal}": (
            lambda a, heads=heads, causal=causal: ragged.ragged_attention(
                a["x"], a["k"], a["v"], a["ends"], heads=heads, causal=causal
            ),
            attention(heads, causal),
        )
        for heads, causal in ((1, False), (2, True), (3, False))
    },
    "scaled_attention of 2 heads, causal": (
        lambda a: ragged.ragged_attention(
            a["x"], a["k"], a["v"], a["ends"], a["factors"], heads=2, causal=True
        ),
        attention(2, True, scaled=True),
    ),
    **{
        f"silu_attention of {heads} heads": (
            lambda a, heads=heads: ragged.ragged_silu_attention(
                a["x"], a["k"], a["v"], a["bias"], a["ends"], heads=heads, scale=0.1
            ),
            silu_attention(heads),
        )
        for heads in (1, 2)
    },
}
AT = ("ends", "places", "place_ends")
TOKENS = np.repeat(STARTS, np.diff(PLACE_ENDS, prepend=0)) + PLACES


def rows_at(a, name):
    return nn.wrap_nested(ragged.ragged_take(a[name], *(a[n] for n in AT)), "rows")._expr


# Of chosen queries: what the operator gives for these tokens.
CASES |= {
    "attention_at of chosen queries": (
        lambda a: operators.attention_at(
            rows_at(a, "x"), a["k"], a["v"], *(a[n] for n in AT), heads=2, causal=1, scale=3**-0.5
        ),
        lambda **given: attention(2, True)(**given)[TOKENS],
    ),
    "scaled_attention_at of chosen queries": (
        lambda a: operators.scaled_attention_at(
            *(rows_at(a, "x"), a["k"], a["v"], *(a[n] for n in AT), rows_at(a, "factors")),
            **{"heads": 2, "causal": 0, "scale": 3**-0.5},
        ),
        lambda **given: attention(2, False, scaled=True)(**given)[TOKENS],
    ),
    "silu_attention_at of chosen queries": (
        lambda a: operators.silu_attention_at(
            *(rows_at(a, "x"), a["k"], a["v"], rows_at(a, "bias"), *(a[n] for n in AT)),
            **{"heads": 2, "causal": 1, "scale": 0.1},
        ),
        lambda **given: silu_attention(2)(**given)[TOKENS],
    ),
}
FLOATS = {name: ["N", WIDTH] for name in "xkv"}
FLOATS |= {"rows": ["B", WIDTH], "bias": ["N", DISTANCES], "factors": ["N", 2 * DISTANCES]}
INTEGERS = {"ends": ["B"], "places": ["M"], "place_ends": ["B"]}


def values():
    rng = np.random.default_rng(0)
    floats = {n: rng.normal(size=({"N": N, "B": 5}[rows], w)) for n, (rows, w) in FLOATS.items()}
    return floats, {"ends": ENDS, "places": PLACES, "place_ends": PLACE_ENDS}


def program_of(name):
    """The sum of the results, each times its cosine, differentiated."""

    class Module(nn.Module):
        def loss(self, *given):
            arguments = dict(zip([*FLOATS, *INTEGERS], (a._expr for a in given), strict=True))
            y = nn.wrap_nested(CASES[name][0](arguments), "y")
            cosine = nn.wrap_nested(op.cos(y._expr), "cosine")
            return nn.wrap_nested(op.sum((y * cosine)._expr), "loss")

    module = Module()
    specs = [nn.spec.Tensor(s, "float64") for s in FLOATS.values()]
    specs += [nn.spec.Tensor(s, "int64") for s in INTEGERS.values()]
    method = nn.spec.MethodSpec(module.loss, [*FLOATS, *INTEGERS], specs, "plain", "plain")
    exported, _ = module.export_tvm({"loss": method})
    wrt = ["rows"] if name in ("expand", "nonempty") else ["x", *"kv" * ("attention" in name)]
    wrt += ["bias"] * ("silu" in name)
    return st.value_and_grad(exported, "loss", wrt, target=UNOPTIMIZED), wrt


SIMILAR = ("attention of 1 heads", "silu_attention of 1 heads")


@pytest.mark.parametrize("name", slow_except({*CASES} - {*SIMILAR}, CASES))
def test_operators_on_ragged_rows_and_their_derivatives(name):
    floats, integers = values()
    program, wrt = program_of(name)
    wanted = CASES[name][1](**floats)
    loss, _ = program(floats, integers)
    assert float(loss.numpy()) == pytest.approx((wanted * np.cos(wanted)).sum(), rel=1e-12)
    inputs = {n: v for n, v in floats.items() if n not in wrt} | integers
    ad.check_grads(program, {n: floats[n] for n in wrt}, inputs)


def test_tokens_know_how_many_are_before_and_behind_them_in_their_row():
    class Module(nn.Module):
        def places(self, x, ends):
            tokens = RaggedTensor(x, ends)
            both = [each()._expr for each in (tokens.positions, tokens.distances)]
            return nn.wrap_nested(op.stack(both), "places")

    module = Module()
    specs = [nn.spec.Tensor(["N"], "float32"), nn.spec.Tensor(["B"], "int64")]
    method = nn.spec.MethodSpec(module.places, ["x", "ends"], specs, "plain", "plain")
    exported, _ = module.export_tvm({"places": method})
    found = st.Program(exported, "places", UNOPTIMIZED)({}, {"x": np.ones(N, "f4"), "ends": ENDS})
    before = np.concatenate([np.arange(count) for count in COUNTS])
    behind = np.concatenate([np.arange(count)[::-1] for count in COUNTS])
    np.testing.assert_array_equal(found.numpy(), [before, behind])


def test_ends_that_do_not_fit_their_tokens_are_refused():
    floats, integers = values()
    program, _ = program_of("sum")
    for ends in (ENDS + 1, ENDS[::-1], ENDS - N):
        with pytest.raises(DataError, match="'ends' must hold the end of each row: .* tokens, 30"):
            program(floats, {**integers, "ends": ends})


def test_heads_that_do_not_divide_the_width_are_refused():
    x = relax.Var("x", relax.TensorType((4, WIDTH), "float32"))
    ends = relax.Var("ends", relax.TensorType((2,), "int64"))
    with pytest.raises(ConfigError, match="4 heads do not divide the width 6"):
        ragged.ragged_attention(x, x, x, ends, heads=4)


def test_bits_do_not_depend_on_the_number_of_threads():
    floats, integers = values()
    program, _ = program_of("attention of 2 heads, causal")
    before = st.runtime.num_threads()
    found = []
    try:
        for threads in (1, before):
            st.set_num_threads(threads)
            found.append({n: g.numpy() for n, g in program(floats, integers)[1].items()})
    finally:
        st.set_num_threads(before)
    assert all(np.array_equal(found[0][n], other[n]) for other in found for n in other)
