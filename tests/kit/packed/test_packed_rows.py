import pickle

import numpy as np

from squelch.kit.archive.rows import from_table, packed, to_table, unpacked
from squelch.kit.archive.schema import TRAJECTORY_SCHEMA
from squelch.kit.records.records import Group, Task, Ticket, Trajectory


def test_packed_rows_are_the_table_also_after_a_pickle() -> None:
    ids = np.arange(5, dtype=np.int32)
    one = Trajectory(0, ids, ids > 2, np.full(5, -0.5, np.float32), [], True, False)
    table = to_table(Group(Ticket("000001-000", 1, Task("X", 0), 1, 0), "key", [one]))
    rows = pickle.loads(pickle.dumps(packed(table)))
    assert unpacked(rows).equals(table) and unpacked(rows).schema.equals(TRAJECTORY_SCHEMA)
    np.testing.assert_array_equal(from_table(unpacked(rows))[0].token_ids, ids)
