# SPDX-License-Identifier: Apache-2.0
"""Exported models: a folder that answers without Python, a compiler or this package.

- `export`, `encoder_tables`, `libraries`, `manifest`: the folder, written
- `native`: the library in C that opens it; `model`: that library from Python, by ctypes and NumPy
- `delta`: the difference between two versions of a folder
- `server`, `requests`: an HTTP server; `onnx_model`: a model without its encoder as ONNX

Importing `sparsetrain.serving.model` imports neither TVM nor Arrow.
"""
