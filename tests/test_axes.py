# SPDX-License-Identifier: Apache-2.0
"""Ratchets: the files that know an axis, those that one warm act runs, the words of the path.

Each number may only fall. Who lowers one writes the new number into its table.
"""

import pytest

from tests import acts, axes
from tests.docs.test_path import STEP as PATH

FILES_OF_ACTS = {"step": 14, "encode": 12, "Encoder.fit": 18, "epoch": 17, "convert": 29}
WORDS_OF_THE_PATH = 8_344


def check(name: str, found: list[str], most: int) -> None:
    """Fail when a number has grown, and when it has fallen below its entry."""
    listed = "\n  ".join(["", *found])
    assert len(found) <= most, f"{name}: {len(found)} files, at most {most}:{listed}"
    assert len(found) == most, f"{name}: {len(found)} files now; lower its entry, {most}"


def test_no_axis_is_known_to_more_files():
    codes = axes.codes()
    for name, files in axes.files_that_know(codes):
        check(name, files, axes.AXES[name].files)


def test_a_branch_in_one_more_file_is_seen():
    more = axes.codes() | {"metrics/new.py": "if on_gpu(values):\n    pass"}
    found = dict(axes.files_that_know(more))["CUDA"]
    with pytest.raises(AssertionError, match=r"at most(.|\n)*metrics/new\.py"):
        check("CUDA", found, axes.AXES["CUDA"].files)


def test_comments_docstrings_and_imports_name_no_axis(tmp_path):
    file = tmp_path / "named.py"
    file.write_text('"""Mentions on_gpu."""\nfrom a import on_gpu\nx = 1  # on_gpu\n')
    assert "on_gpu" not in axes.code(file)


@pytest.mark.cpu("a step is one program on a CPU")
def test_no_act_runs_through_more_files(tmp_path):
    for name, act in acts.acts(tmp_path).items():
        check(name, acts.files_of(act), FILES_OF_ACTS[name])


def test_the_path_through_the_code_has_no_more_words():
    words = sum(len((axes.PACKAGE / file).read_text().split()) for file in PATH)
    assert words <= WORDS_OF_THE_PATH
