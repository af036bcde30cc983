# SPDX-License-Identifier: Apache-2.0
"""Operators of floats that have no derivative, and what to write in their place.

Every operator of TVM has a rule, or gives no floats that depend on its arguments, or is here.
A rule that is registered takes an operator off the list.
"""

from __future__ import annotations

_RESIZE = "resize before the model, or by nn.op.repeat"
_WINDOWS = "use avg_pool1d, 2d or 3d, or a mean, with windows of one size"
_VISION = "compute boxes before the model"
_DEVICE = "leave it away: target= says where a program runs"

# Operator -> the way out.
WITHOUT = {
    "relax.nn.dropout": "use models.Dropout, or ad.dropout with a key of the step",
    "relax.nn.attention_var_len": "use attention, with a bias that is low where there is nothing",
    "relax.nn.adaptive_avg_pool1d": _WINDOWS,
    "relax.nn.adaptive_avg_pool2d": _WINDOWS,
    "relax.nn.adaptive_avg_pool3d": _WINDOWS,
    "relax.nn.pixel_shuffle": "use reshape and permute_dims",
    "relax.image.affine_grid": _RESIZE,
    "relax.image.grid_sample": _RESIZE,
    "relax.image.resize2d": _RESIZE,
    "relax.image.resize3d": _RESIZE,
    "relax.vision.all_class_non_max_suppression": _VISION,
    "relax.vision.get_valid_counts": _VISION,
    "relax.vision.multibox_transform_loc": _VISION,
    "relax.vision.non_max_suppression": _VISION,
    "relax.vision.roi_align": _VISION,
    "relax.vision.roi_pool": _VISION,
    "relax.slice_scatter": "join what stays and what is written by concat",
    "relax.dynamic_strided_slice": "use strided_slice",
    "relax.unique": "make ids unique before the model",
    "relax.median": "use sort and strided_slice",
    "relax.meshgrid": "use expand_dims and broadcast_to",
    "relax.layout_transform": "use reshape and permute_dims",
    "relax.ewise_fma": "use multiply and add",
    "relax.dequantize": "multiply and subtract",
    "relax.quantize": "train in floats, quantize what was trained",
    "relax.multinomial_from_uniform": "draw before the model",
    "relax.hint_on_device": _DEVICE,
    "relax.to_vdevice": _DEVICE,
    "relax.wrap_param": "use astype",
}
