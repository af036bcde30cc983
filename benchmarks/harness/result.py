# SPDX-License-Identifier: Apache-2.0
"""Results of a run as one dictionary, which ``--json`` prints."""

import datetime
import os
import statistics
from pathlib import Path
from typing import Any

from harness.rounds import Rounds, Score
from harness.task import Task
from harness.timing import GEMM_FLOPS


def summarize(
    task: Task, about: dict[str, Any], rounds: Rounds, profile: dict[str, Any]
) -> dict[str, Any]:
    """Everything that a run found; `about` is what each arm says of itself."""
    scores = rounds.scores
    flops = task.config.matmul_flops(task.batch)
    roofs = _roofs(about["roofs"], scores)
    arms = {
        name: _arm(scores[name], task.batch, flops) | _early_loss(answer) | about[name]
        for name, answer in rounds.pilot.items()
    }
    for arm in arms.values():
        arm["gemm_roof_share"] = arm["gflops"] / roofs["gemm_gflops"]
    return {
        "machine": machine(task.threads),
        "task": task.to_dict(),
        "matmul_gflop": flops / 1e9,
        "arms": arms,
        "ratios": _ratios(arms, "median_ms"),
        "ratios_p10": _ratios(arms, "p10_ms"),
        "roofs": roofs,
        "quiet": _quiet(scores),
        "profile": _profile(profile, roofs),
    }


def machine(threads: int) -> dict[str, Any]:
    """Return machine, versions and date of the run."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else "unknown",
        "cores": os.cpu_count(),
        "threads": threads,
        "date": datetime.date.today().isoformat(),
    }


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Median, p10 (fast) and p90 (slow)."""
    deciles = statistics.quantiles(seconds, n=10)
    points = {"median_ms": statistics.median(seconds), "p10_ms": deciles[0], "p90_ms": deciles[-1]}
    return {name: value * 1e3 for name, value in points.items()}


def _arm(score: Score, batch: int, flops: int) -> dict[str, Any]:
    seconds = score.samples("seconds")
    median = statistics.median(seconds)
    return milliseconds(seconds) | {
        "rows_per_s": batch / median,
        "gflops": flops / median / 1e9,
        "steps": len(seconds),
        "turns_ms": [1e3 * statistics.median(turn.answer["seconds"]) for turn in score.counted],
    }


def _ratios(arms: dict[str, Any], point: str) -> dict[str, float]:
    """Each peer's time over ours."""
    return {name: arm[point] / arms["ours"][point] for name, arm in arms.items() if name != "ours"}


def _early_loss(pilot: dict[str, Any]) -> dict[str, Any]:
    """The loss while rounding has not yet driven the arms apart: it shows that they do the same."""
    return {"loss": pilot["loss"], "loss_after_steps": pilot["steps"]}


def _roofs(about: dict[str, Any], scores: dict[str, Score]) -> dict[str, float]:
    def median(arm: str, name: str) -> float:
        return statistics.median(scores[arm].samples(name))

    gemm = {arm: GEMM_FLOPS / median(arm, "gemm") / 1e9 for arm in ("roofs", "numpy")}
    return {
        "gemm_gflops": max(gemm.values()),
        "gemm_gflops_ours": gemm["roofs"],
        "gemm_gflops_numpy": gemm["numpy"],
        "gather_gb_per_s": about["gather_bytes"] / median("roofs", "gather") / 1e9,
    }


def _quiet(scores: dict[str, Score]) -> dict[str, Any]:
    """Whether the figures come from undisturbed turns, and what went on beside them."""
    turns = [turn for score in scores.values() for turn in score.counted]
    return {
        "clean": all(score.is_clean for score in scores.values()),
        "turns": sum(len(score.turns) for score in scores.values()),
        "disturbed_turns": sum(len(s.turns) - len(s.clean) for s in scores.values()),
        "other_cores": statistics.mean(turn.other_cores for turn in turns),
        "idle_arms_cores": statistics.mean(turn.idle_cores for turn in turns),
    }


def _profile(profile: dict[str, Any], roofs: dict[str, float]) -> dict[str, Any]:
    step = profile["step"]
    kernels = sorted(profile["kernels"], key=lambda kernel: -kernel["seconds"])
    products = [kernel for kernel in kernels if kernel["flops"]]
    seconds = sum(kernel["seconds"] for kernel in products)
    flops = sum(kernel["flops"] for kernel in products)
    gflops = flops / seconds / 1e9 if products else 0.0
    return {
        "step_ms": step * 1e3,
        "kernels": [_kernel(kernel, step) for kernel in kernels],
        "outside_kernels_ms": {name: value * 1e3 for name, value in profile["outside"].items()},
        "matmul_ms": seconds * 1e3,
        "matmul_gflops": gflops,
        "matmul_roof_share": gflops / roofs["gemm_gflops"],
        "rows_share": sum(k["seconds"] for k in kernels if _moves_rows(k["name"])) / step,
    }


def _kernel(kernel: dict[str, Any], step: float) -> dict[str, Any]:
    rate = {"gb_per_s": kernel["bytes"] / kernel["seconds"] / 1e9} if kernel["bytes"] else {}
    if kernel["flops"]:
        rate = {"gflops": kernel["flops"] / kernel["seconds"] / 1e9}
    return {
        "name": kernel["name"],
        "calls": kernel["calls"],
        "ms": kernel["seconds"] * 1e3,
        "share": kernel["seconds"] / step,
        **rate,
    }


def _moves_rows(name: str) -> bool:
    """Whether a kernel gathers, coalesces or updates rows of tables."""
    words = ("lookup", "touched rows", "sort of rows", "embedding bag")
    return any(word in name for word in words)
