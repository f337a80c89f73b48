"""DESIGN "Costs are tested": no operation takes more user-space instructions than its row of table.md says."""
import pytest
import table
from operations import OPERATIONS

ROWS = table.read()[1]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_takes_no_more_instructions_than_its_row_says(profiled, name):
    measured = profiled.measure(name, OPERATIONS[name].samples[1])
    profiled.figures[name] = figures = {table.INSTRUCTIONS: measured[table.INSTRUCTIONS]}
    wrong = table.exceeded(ROWS[name], figures)
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
