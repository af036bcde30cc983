# SPDX-License-Identifier: Apache-2.0
"""A model served over HTTP and queried with curl; times are ISO 8601 text.

pip install 'sparsetrain[export,serve]' && python examples/serve.py
"""

import json
import subprocess
import sys
import tempfile

import numpy as np
import pandas as pd

import sparsetrain as st

rng, folder = np.random.default_rng(0), tempfile.mkdtemp()
times = pd.Timestamp("2026-11-01") + pd.to_timedelta(
    rng.integers(0, 864_000, 2_000), "s"
)
# in the evening
clicks = rng.random(2_000) < np.where(times.hour >= 18, 0.8, 0.1)
log = pd.DataFrame(
    {"click": clicks, "site": rng.integers(0, 50, 2_000), "time": times}
)
encoder = st.data.Encoder.fit(
    log, schema=st.data.infer(log, "click").schema
)
trainer = st.Trainer(
    st.models.FM.for_encoder(encoder),
    st.optim.adagrad(0.1),
    encoder=encoder,
)
trainer.fit(log, epochs=5, progress=None)
trainer.save(f"{folder}/run")

command = [sys.executable, "-m", "sparsetrain"]
subprocess.run(
    [*command, "export", f"{folder}/run", "--out", f"{folder}/served"],
    check=True,
)
serve = [*command, "serve", f"{folder}/served", "--port", "0"]
with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
    # of "listening on http://127.0.0.1:PORT"
    address = server.stdout.readline().split()[-1]
    rows = [
        {"site": 7, "time": f"2026-12-24T{time}"}
        for time in ("09:30:00", "19:30:00Z")
    ]
    body = [
        "-H",
        "content-type: application/json",
        "-d",
        json.dumps({"rows": rows}),
    ]
    curl = ["curl", "--silent", "--fail", f"{address}/predict", *body]
    found = json.loads(subprocess.check_output(curl))
    server.terminate()
print("in the morning and in the evening:", found["predictions"])
