# SPDX-License-Identifier: Apache-2.0
from sparsetrain.serving import libraries


def test_the_c_interface_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSETRAIN_CACHE", str(tmp_path / "cache"))
    run, commands = libraries._run, []
    monkeypatch.setattr(libraries, "_run", lambda command: commands.append(command) or run(command))
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        libraries.write_interface(tmp_path / name)
        written.append((tmp_path / name / libraries.INTERFACE).read_bytes())
    assert len(commands) == 1
    assert written[0] == written[1]
