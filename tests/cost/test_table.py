"""The table itself: it has a row for every operation, its cells can be exceeded, and bench/COSTS.md has figures for all of it."""
import table
from operations import OPERATIONS

COLUMNS = ["system calls", "allocations", "instructions", "round trips", "statements", "transactions", "WAL bytes", "notices",
           "bus messages"]


def test_every_operation_has_a_row_and_every_row_all_columns():
    columns, rows = table.read()
    assert columns == COLUMNS
    assert list(rows) == list(OPERATIONS)


def test_an_exceeded_cell_is_named_with_its_row_and_its_place():
    row = table.Row("WAIT_COMMIT direct", {"statements": 7, "notices": 2}, 12)
    assert table.exceeded(row, {"statements": 7, "notices": 2}) == []
    assert table.exceeded(row, {"statements": 9, "notices": 2}) == [
        "WAIT_COMMIT direct: statements 9 > 7 (tests/cost/table.md:12)"]


def test_the_printed_page_has_the_same_rows_and_no_figure_above_its_limit():
    columns, rows = table.read()
    printed_columns, printed = table.read(table.PRINTED)
    assert (printed_columns, list(printed)) == (columns, list(rows))
    assert [wrong for name, row in rows.items() for wrong in table.exceeded(row, printed[name].limits)] == []
