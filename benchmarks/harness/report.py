# SPDX-License-Identifier: Apache-2.0
"""Text form of a run's results."""

from collections.abc import Iterator
from typing import Any

LARGEST = 22  # kernels shown by name; the rest are one line


def describe(result: dict[str, Any]) -> str:
    """Tables of the arms, the roofs and the profile."""
    parts = [_head(result), _arms(result), _roofs(result), _profile(result["profile"])]
    return "\n\n".join(parts)


def _head(result: dict[str, Any]) -> str:
    task, machine = result["task"], result["machine"]
    parts = f"batches in {task['accumulate']} parts, " if task["accumulate"] > 1 else ""
    return (
        f"{task['config_name']}, B = {task['batch']}, {task['optimizer']}, {task['precision']}, "
        f"{parts}{machine['threads']} threads; {machine['cpu']}, {machine['date']}"
    )


def _arms(result: dict[str, Any]) -> str:
    head = [
        "step",
        "median ms",
        "p10",
        "p90",
        "rows/s",
        "GFLOP/s",
        "of roof",
        "ratio",
        "of p10",
        "loss",
    ]
    rows = [
        [
            name,
            f"{arm['median_ms']:.2f}",
            f"{arm['p10_ms']:.2f}",
            f"{arm['p90_ms']:.2f}",
            f"{arm['rows_per_s']:,.0f}",
            f"{arm['gflops']:.0f}",
            f"{arm['gemm_roof_share']:.0%}",
            f"{result['ratios'].get(name, 1):.2f}",
            f"{result['ratios_p10'].get(name, 1):.2f}",
            f"{arm['loss']:.5f}",
        ]
        for name, arm in result["arms"].items()
    ]
    ours, quiet = result["arms"]["ours"], result["quiet"]
    notes = [
        f"{ours['steps']} steps each over {result['task']['batches']} batches, "
        f"{result['unique_rows']:,.0f} distinct rows each; loss after {ours['loss_after_steps']} "
        "steps from the same weights",
        f"our program compiled in {ours['compile_s']:.1f} s, and came from the disk cache in "
        f"{ours['cached_compile_s']:.2f} s",
        f"beside the arm at work: idle arms {quiet['idle_arms_cores']:.2f} cores, "
        f"others {quiet['other_cores']:.2f}; {quiet['disturbed_turns']} of {quiet['turns']} turns "
        + ("disturbed and left out" if quiet["clean"] else "DISTURBED AND COUNTED: run it again"),
    ]
    return "\n".join([_table([head, *rows]), *notes])


def _roofs(result: dict[str, Any]) -> str:
    roofs = result["roofs"]
    return (
        f"roofs: GEMM {roofs['gemm_gflops']:.0f} GFLOP/s (ours {roofs['gemm_gflops_ours']:.0f}, "
        f"NumPy {roofs['gemm_gflops_numpy']:.0f}), random rows "
        f"{roofs['gather_gb_per_s']:.1f} GB/s read and written"
    )


def _profile(profile: dict[str, Any]) -> str:
    rows = [["kernel", "calls", "ms", "share", "GFLOP/s", "GB/s"], *_kernel_rows(profile)]
    return "\n".join(
        [
            f"profile of ours, {profile['step_ms']:.2f} ms at the median",
            _table(rows),
            f"products: {profile['matmul_ms']:.2f} ms at {profile['matmul_gflops']:.0f} GFLOP/s, "
            f"{profile['matmul_roof_share']:.0%} of the roof; gather, coalescing and row update: "
            f"{profile['rows_share']:.1%} of the step",
        ]
    )


def _kernel_rows(profile: dict[str, Any]) -> Iterator[list[str]]:
    step = profile["step_ms"]
    shown, others = profile["kernels"][:LARGEST], profile["kernels"][LARGEST:]
    for kernel in shown:
        yield [
            kernel["name"],
            f"{kernel['calls']:.0f}",
            f"{kernel['ms']:.3f}",
            f"{kernel['share']:.1%}",
            f"{kernel['gflops']:.0f}" if "gflops" in kernel else "",
            f"{kernel['gb_per_s']:.1f}" if "gb_per_s" in kernel else "",
        ]
    rest = sum(kernel["ms"] for kernel in others)
    outside = profile["outside_kernels_ms"].items()
    lines = [(f"{len(others)} other kernels", rest)] if others else []
    for name, ms in [*lines, *((f"({name})", ms) for name, ms in outside)]:
        yield [name, "", f"{ms:.3f}", f"{ms / step:.1%}", "", ""]


def _table(rows: list[list[str]]) -> str:
    """Columns as wide as their widest cell; the first is aligned left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
