# SPDX-License-Identifier: Apache-2.0
import pytest

from sparsetrain.system import cores

PERIOD = {"cpu.cfs_period_us": "100000\n"}
# What a process reads of its group, the files of groups, and the CPUs that it may use.
GROUPS = {
    "no limit": ("0::/a", {"a": {"cpu.max": "max 100000\n"}}, None),
    "its own": ("0::/a/b", {"a/b": {"cpu.max": "150000 100000\n"}}, 1.5),
    "one above": ("0::/a/b", {"a": {"cpu.max": "50000 100000"}, "a/b": {"cpu.max": "max 1"}}, 0.5),
    "a container's root": ("0::/docker/1f", {"": {"cpu.max": "200000 100000"}}, 2.0),
    "version 1": ("3:cpu,cpuacct:/x", {"cpu/x": {"cpu.cfs_quota_us": "300000"} | PERIOD}, 3.0),
    "version 1, none": ("3:cpu:/x\n0::/", {"cpu/x": {"cpu.cfs_quota_us": "-1"} | PERIOD}, None),
    "another controller": ("3:memory:/x", {"x": {"cpu.max": "100000 100000"}}, None),
    "nothing readable": ("0::/", {}, None),
}


@pytest.mark.parametrize("own, groups, quota", GROUPS.values(), ids=GROUPS.keys())
def test_the_quota_of_a_control_group_is_that_of_the_narrowest(own, groups, quota, tmp_path):
    (tmp_path / "own").write_text(own)
    for name, files in groups.items():
        (tmp_path / "root" / name).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (tmp_path / "root" / name / file).write_text(text)
    assert cores.cpu_quota(tmp_path / "own", tmp_path / "root") == quota


def test_a_quota_below_the_cores_decides_and_leaves_one(monkeypatch):
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: range(8))
    for quota, expected in ((None, 8), (16.0, 8), (2.5, 2), (0.5, 1)):
        monkeypatch.setattr(cores, "cpu_quota", lambda quota=quota: quota)
        assert cores.available_cores() == expected
