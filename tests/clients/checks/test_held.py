"""Hot outputs that are held to grammars: a few of those that `held.py` draws by hand."""

import sys
from pathlib import Path

from conftest import KEY

sys.path.insert(0, str(Path(__file__).parent.parent))
import held  # noqa: E402

OUTPUTS = 108


def test_hot_outputs_follow_what_they_are_held_to(server):
    counts, wrong = held.held(server.url, OUTPUTS, KEY)
    assert not wrong, "\n".join(wrong)
    complete = sum(n for (_, how), n in counts.items() if how == "complete")
    assert sum(counts.values()) == OUTPUTS and complete > 0.8 * OUTPUTS, counts
    # Something of every kind came to its end.
    assert {name for name, how in counts if how == "complete"} == {name for name, *_ in held.cases()}
