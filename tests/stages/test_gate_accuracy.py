"""The accuracy gate's figures, on arrays: no model runs."""

import numpy as np

from edgefuse.stages.gate_accuracy import _least_sqnr

GROUPS = [f"picture {k}" for k in range(40)]
RESAMPLING = {"resamples": 200, "seed": 0}


def test_a_ruined_second_output_is_not_hidden_by_the_first() -> None:
    random = np.random.default_rng(0)
    good, ruined = random.normal(size=(40, 10)), random.normal(size=(40, 3))
    near = good + random.normal(size=good.shape) * 1e-3
    first = _least_sqnr([good], [near], GROUPS, RESAMPLING)
    both = _least_sqnr([good, ruined], [near, -ruined], GROUPS, RESAMPLING)
    assert first is not None and both is not None
    assert first[0] > 50 and first[1] <= first[0]
    assert both[0] < 0 and both[1] <= both[0]


def test_equal_outputs_have_no_noise_to_judge() -> None:
    zeros, same = np.zeros((40, 2)), np.ones((40, 2))
    assert _least_sqnr([zeros, same], [zeros, same], GROUPS, RESAMPLING) is None
    assert _least_sqnr([zeros, same], [zeros, same + 0.1], GROUPS, RESAMPLING) is not None
