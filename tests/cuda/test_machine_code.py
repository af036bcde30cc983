# SPDX-License-Identifier: Apache-2.0
"""Machine code for four architectures: nothing approximate, wide reads, no more of anything.

About five minutes of a processor, hence slow. ``python -m tests.golden kernels`` records the table
again, with the nvcc of the extra `cuda` at the version in constraints.txt.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from sparsetrain.runtime import cuda_wheels
from tests.cuda import device, emulator, machine_code

TABLE = Path(__file__).parents[1] / "golden" / "kernels.json"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason=f"no nvcc: {cuda_wheels.INSTALL}"),
    pytest.mark.skipif(
        not device.is_real() and emulator.missing() is not None, reason=str(emulator.missing())
    ),
]
# A row of three numbers cannot be taken in parts of sixteen bytes, and a source is no row.
_NAMES = "lookup|rows|bag|chunks|sum|replay|mean_back|weighted"
OF_ROWS = re.compile(rf"by hand: ({_NAMES})(?!3|_source)")
SIXTEEN_BYTES = re.compile(r"ld\.global\S*\.(v4\.[bfu]32|v2\.[bfu]64)")
each = pytest.mark.parametrize("arch", machine_code.ARCHITECTURES)


@pytest.fixture(scope="module")
def recorded():
    return json.loads(TABLE.read_text())


@each
def test_no_kernel_takes_more_than_was_recorded(arch, recorded):
    used = machine_code.compiled(arch).usage
    if machine_code.version() != recorded["nvcc"]:
        pytest.skip(f"recorded with nvcc {recorded['nvcc']}, this is {machine_code.version()}")
    column = recorded["architectures"].index(arch)
    limits = {
        name: machine_code.Usage(*map(int, row.split()[column].split(",")))
        for name, row in recorded["kernels"].items()
    }
    assert not used.keys() - limits.keys(), "new kernels: python -m tests.golden kernels"
    assert not worse(used, limits)


def worse(used, limits):
    """Kernel -> what it takes and what it took, of those that take more of anything."""
    grown = {name for name, use in used.items() if any(map(int.__gt__, use, limits[name]))}
    return {name: (used[name], limits[name]) for name in grown}


@pytest.mark.parametrize("place", machine_code.Usage._fields)
def test_more_of_anything_is_worse(place):
    limits = {"kernel": machine_code.Usage(40, 0, 1024)}
    more = limits["kernel"]._replace(**{place: getattr(limits["kernel"], place) + 1})
    assert worse({"kernel": more}, limits) == {"kernel": (more, limits["kernel"])}
    assert not worse({"kernel": limits["kernel"]}, limits)


@each
def test_nothing_is_approximate_but_the_last_step_of_an_exact_exponential(arch):
    for name, text in machine_code.compiled(arch).assembly.items():
        found = re.findall(r"\w+\.(?:approx|full)[.\w]*|\w+\.rn\.ftz[.\w]*", text)
        assert {*found} <= {"ex2.approx.ftz.f32"}, name


@each
def test_rows_are_read_sixteen_bytes_at_a_time(arch):
    kernels = machine_code.compiled(arch).assembly
    of_rows = [name for name in kernels if OF_ROWS.match(name)]
    assert len(of_rows) > 20
    assert [name for name in of_rows if not SIXTEEN_BYTES.search(kernels[name])] == []
