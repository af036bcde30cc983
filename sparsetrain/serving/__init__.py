# SPDX-License-Identifier: Apache-2.0
"""Exported models: a folder that predicts without Python, a compiler or this package.

- `export`, `encoder_tables`, `libraries`, `manifest`: write the folder
- `native`: the C library that opens it; `model`: that library in Python, by ctypes and NumPy
- `delta`: the difference between two versions of a folder
- `server`, `requests`: an HTTP server; `onnx_model`: a model without its encoder as ONNX

Importing `sparsetrain.serving.model` imports neither TVM nor Arrow.
"""
