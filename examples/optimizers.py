# SPDX-License-Identifier: Apache-2.0
"""Optimizers of papers as formulas: Lion, LAMB, CowClip, row-wise Adam.

trainer = st.Trainer(model, optimizer=lamb(0.01, mode="exact"))
"""

import sparsetrain as st

ADAM = st.optim.adam(1e-3).formula
TINY = 1e-30  # in place of 0 below a fraction


# Chen et al. 2023, https://arxiv.org/abs/2302.06675, algorithm 2. Its decay
# is decoupled.
def lion(lr, *, beta1=0.9, beta2=0.99, weight_decay=0.0, **options):
    def step(w, g, slots, h):
        (mean,) = slots
        update = st.optim.sign(h.beta1 * mean + (1 - h.beta1) * g)
        return w - h.lr * update, (h.beta2 * mean + (1 - h.beta2) * g,)

    formula = st.optim.Formula(
        "lion", step, (st.optim.Slot("mean"),), slot_decay=("beta2",)
    )
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2}
    return st.optim.Optimizer(
        formula,
        numbers,
        weight_decay=weight_decay,
        decoupled=True,
        **options,
    )


# Adam with one second moment for each row: a table's state is V numbers
# less than twice its size.
def rowwise_adam(lr, *, beta1=0.9, beta2=0.999, eps=1e-8, **options):
    def step(w, g, slots, h):
        mean, square = slots
        mean = h.beta1 * mean + h.rise1 * g
        square = h.beta2 * square + h.rise2 * h.mean_square
        return w - h.rate * mean / (
            st.optim.sqrt(square) * h.spread + h.eps
        ), (mean, square)

    formula = ADAM._replace(
        name="rowwise_adam",
        step=step,
        slots=(st.optim.Slot("mean"), st.optim.Slot("square", "row")),
        row_means=(
            st.optim.RowMean("mean_square", lambda w, g, slots, h: g * g),
        ),
    )
    return st.optim.Optimizer(
        formula,
        {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps},
        **options,
    )


# You et al. 2020, https://arxiv.org/abs/1904.00962, algorithm 2. Each
# row counts as a layer: the vector of an id, or the inputs of a neuron.
def lamb(lr, *, beta1=0.9, beta2=0.999, eps=1e-6, decay=0.01, **options):
    def moments(w, g, slots, h):
        mean = h.beta1 * slots[0] + h.rise1 * g
        square = h.beta2 * slots[1] + h.rise2 * (g * g)
        unbiased = (
            h.rate * mean / (st.optim.sqrt(square) * h.spread + h.eps)
        )
        return mean, square, unbiased + h.decay * w

    def of_update(w, g, slots, h):
        _, _, update = moments(w, g, slots, h)
        return update * update

    def corrections(hyper, step):
        return ADAM.per_step({**hyper, "lr": 1.0}, step)

    def step(w, g, slots, h):
        mean, square, update = moments(w, g, slots, h)
        # else the ratio of the norms is 1
        both = st.optim.minimum(h.of_weight, h.of_update) > 0
        trust = st.optim.where(
            both,
            st.optim.sqrt(
                h.of_weight / st.optim.maximum(h.of_update, TINY)
            ),
            1.0,
        )
        return w - h.lr * trust * update, (mean, square)

    row_means = (
        st.optim.RowMean("of_weight", lambda w, g, slots, h: w * w),
        st.optim.RowMean("of_update", of_update),
    )
    formula = st.optim.Formula(
        "lamb", step, ADAM.slots, row_means, corrections
    )
    numbers = {
        "lr": lr,
        "beta1": beta1,
        "beta2": beta2,
        "eps": eps,
        "decay": decay,
    }
    return st.optim.Optimizer(formula, numbers, **options)


# Zheng et al. 2023, https://arxiv.org/abs/2204.06240, algorithm 1: clip
# the gradient of an id to its count in the batch times the norm of its
# vector, then apply Adam. Dense weights are not clipped.
def cowclip(lr, *, ratio=1.0, bound=1e-5, **options):
    def step(w, g, slots, h):
        norm, weight = (
            st.optim.sqrt(h.of_gradient * h.width),
            st.optim.sqrt(h.of_weight * h.width),
        )
        limit = h.count * st.optim.maximum(h.ratio * weight, h.bound)
        factor = st.optim.where(
            h.count > 0,
            st.optim.minimum(1.0, limit / st.optim.maximum(norm, TINY)),
            1.0,
        )
        return ADAM.step(w, factor * g, slots, h)

    row_means = (
        st.optim.RowMean("of_gradient", lambda w, g, slots, h: g * g),
        st.optim.RowMean("of_weight", lambda w, g, slots, h: w * w),
    )
    formula = ADAM._replace(name="cowclip", step=step, row_means=row_means)
    numbers = {**st.optim.adam(lr).hyper, "ratio": ratio, "bound": bound}
    return st.optim.Optimizer(formula, numbers, **options)
