from __future__ import annotations

import pytest
from passes.check_pass import apply

from edgefuse.graph.example import example_model, shown
from edgefuse.graph.rule import PASSES, Pass


@pytest.mark.parametrize("entry", PASSES.all().values(), ids=lambda entry: entry.name)
def test_every_pass_fires_on_its_own_example_and_the_numbers_stay(entry: Pass) -> None:
    done = apply(entry, example_model(entry.example))
    assert done.ledger.fired(entry.name) >= 1
    found = shown(entry)
    assert found.fired >= 1 and found.before != found.after
