"""DESIGN "Costs are tested": no operation uses more system calls, allocations, SQL or WAL than its row of table.md says."""
import pytest
import table
from operations import OPERATIONS

ROWS = table.read()[1]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_uses_no_more_than_its_row_says(counted, name):
    figures = counted.measure(name, OPERATIONS[name].samples[0])
    counted.figures[name] = figures
    wrong = table.exceeded(ROWS[name], figures)
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
