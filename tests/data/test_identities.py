# SPDX-License-Identifier: Apache-2.0
from tests.data import identities


def test_a_value_has_one_id_in_every_form_and_layout(tmp_path):
    for case in range(200):
        identities.check(case, tmp_path)
